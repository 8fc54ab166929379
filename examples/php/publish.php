<?php
// Stores an order, and a message about it, in one transaction. Each line of the input is an order:
//   echo 'two books' | php publish.php
$db = new PDO(
    sprintf('mysql:host=%s;port=%s;dbname=%s;charset=utf8mb4', getenv('DB_HOST'), getenv('DB_PORT'), getenv('DB_NAME')),
    getenv('DB_USER'),
    getenv('DB_PASSWORD'),
);
$order = $db->prepare('INSERT INTO customer_orders (item) VALUES (?)');
$message = $db->prepare('INSERT INTO order_events (payload) VALUES (?)');

while (($item = fgets(STDIN)) !== false) {
    $db->beginTransaction();
    $order->execute([trim($item)]);
    $message->execute([$db->lastInsertId()]);
    $db->commit(); // from here on the message is there, and those who wait for it wake
}
