<?php
// Stands for WebSVN: shows how it was called.
header('Content-Type: text/plain');
echo "wsvn ", $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '', ' ', $_SERVER['REQUEST_URI'], "\n";
