<?php
// Replaces WebSVN in this example, and prints the variables with which it was called.
header('Content-Type: text/plain');
echo "wsvn ", $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '', ' ', $_SERVER['REQUEST_URI'], "\n";
