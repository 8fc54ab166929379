<?php
// Sends a notification:
//   php notify.php reload v42
$db = new PDO(
    sprintf('mysql:host=%s;port=%s;dbname=%s;charset=utf8mb4', getenv('DB_HOST'), getenv('DB_PORT'), getenv('DB_NAME')),
    getenv('DB_USER'),
    getenv('DB_PASSWORD'),
);
$db->prepare('CALL mqnotify_notify(?, ?)')->execute([$argv[1], $argv[2]]);
