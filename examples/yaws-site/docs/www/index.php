<?php
// Stands for WordPress: shows what that goes by.
header('Content-Type: text/plain');
echo "blog ", $_SERVER['REQUEST_URI'], ' ', $_SERVER['PATH_INFO'] ?? '', ' ', $_GET['p'] ?? '', "\n";
