<?php
// symfony.php work|wake|push|later: a worker as the framework runs it, one that wakes, and what sends messages.
error_reporting(E_ALL & ~E_DEPRECATED);
require 'Symfony/Component/Messenger/autoload.php';
require 'Symfony/Component/Messenger/Bridge/Doctrine/autoload.php';
require 'Doctrine/DBAL/autoload.php';
require __DIR__ . '/../symfony/WakingConnection.php';
require __DIR__ . '/../symfony/WakingTransportFactory.php';

use App\Messenger\WakingConnection;
use App\Messenger\WakingTransportFactory;
use Doctrine\DBAL\DriverManager;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\Connection;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Stamp\DelayStamp;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;

class Mail
{
    public $n;
    public $at;
}

class Registry
{
    public $connection;

    public function getConnection($name)
    {
        return $this->connection;
    }
}

WakingConnection::$utc = false; // this is Symfony 5.4
date_default_timezone_set('Asia/Tokyo'); // not the server's
$registry = new Registry();
$registry->connection = DriverManager::getConnection(['driver' => 'pdo_mysql', 'host' => getenv('DB_HOST'), 'port' => getenv('DB_PORT'),
    'dbname' => getenv('DB_NAME'), 'user' => getenv('DB_USER'), 'password' => getenv('DB_PASSWORD'), 'charset' => 'utf8mb4']);
$transport = $argv[1] === 'wake'
    ? (new WakingTransportFactory($registry))->createTransport('waking://default?auto_setup=0&redeliver_timeout=' . (getenv('RETRY_AFTER') ?: 90), [], new PhpSerializer())
    : new DoctrineTransport(new Connection(['auto_setup' => false, 'redeliver_timeout' => (int) (getenv('RETRY_AFTER') ?: 90)], $registry->connection), new PhpSerializer());
$send = function ($n, $stamps = []) use ($transport) {
    $mail = new Mail();
    $mail->n = (int) $n;
    $mail->at = microtime(true);
    $transport->send(new Envelope($mail, $stamps));
};
switch ($argv[1]) {
    case 'push': // each line of the input is a number
        while (($n = fgets(STDIN)) !== false) {
            $send($n);
        }
        exit;
    case 'later':
        $send($argv[2], [new DelayStamp(5000)]);
        exit;
}
while (true) {
    $none = true;
    foreach ($transport->get() as $envelope) {
        $mail = $envelope->getMessage();
        $registry->connection->insert('handled', ['id' => $mail->n, 'pushed_at' => $mail->at, 'handled_at' => microtime(true)]);
        $transport->ack($envelope);
        $none = false;
    }
    if ($none && $argv[1] === 'work') {
        sleep(1); // as messenger:consume does
    }
}
