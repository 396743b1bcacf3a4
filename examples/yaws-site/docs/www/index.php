<?php
// Replaces WordPress in this example, and prints the variables from which WordPress selects a page.
header('Content-Type: text/plain');
echo "blog ", $_SERVER['REQUEST_URI'], ' ', $_SERVER['PATH_INFO'] ?? '', ' ', $_GET['p'] ?? '', "\n";
