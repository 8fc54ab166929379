<?php
// Prints the notifications of a name:
//   php listen.php reload
$db = new PDO(
    sprintf('mysql:host=%s;port=%s;dbname=%s;charset=utf8mb4', getenv('DB_HOST'), getenv('DB_PORT'), getenv('DB_NAME')),
    getenv('DB_USER'),
    getenv('DB_PASSWORD'),
);
$listen = $db->prepare('CALL mqnotify_listen(?, ?, 30)');

$id = null; // from now on
while (true) {
    $listen->execute([$argv[1], $id]);
    $notification = $listen->fetch();
    $listen->closeCursor();
    $id = $notification['id'];
    if ($notification['payload'] !== null) { // else 30 s have passed
        echo $notification['payload'], "\n";
    }
}
