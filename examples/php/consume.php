<?php
// Ships orders: handles each message once, in the transaction that deletes it. Several may run. It ends after an error:
// let a supervisor start it again.
//   php consume.php
$db = new PDO(
    sprintf('mysql:host=%s;port=%s;dbname=%s;charset=utf8mb4', getenv('DB_HOST'), getenv('DB_PORT'), getenv('DB_NAME')),
    getenv('DB_USER'),
    getenv('DB_PASSWORD'),
);
$db->exec('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'); // another one locks INSERTs out
$ship = $db->prepare('INSERT INTO shipments (order_id) VALUES (?)');
$delete = $db->prepare('DELETE FROM order_events WHERE id = ?');
$wait = $db->prepare("CALL mqnotify_wait('order_events', ?, 10)");

$after = 0;
while (true) {
    $db->beginTransaction();
    $message = $db->query('SELECT id, payload FROM order_events ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED')->fetch();
    if ($message) {
        $ship->execute([$message['payload']]);
        $delete->execute([$message['id']]);
        $db->commit();
        $after = 0;
        continue;
    }
    $db->commit();
    $wait->execute([$after]);
    $after = $wait->fetchColumn() ?? 0; // rows that others have locked: wait for newer ones
    $wait->closeCursor();
}
