<?php
// laravel.php work|wake|push|later: a worker as the framework runs it, one that wakes, and what pushes jobs.
error_reporting(E_ALL & ~E_DEPRECATED);
require 'Illuminate/Queue/autoload.php';
require __DIR__ . '/../laravel/WakingQueue.php';
require __DIR__ . '/../laravel/WakingConnector.php';

use App\Queue\WakingConnector;
use Illuminate\Container\Container;
use Illuminate\Database\Capsule\Manager;
use Illuminate\Queue\Connectors\DatabaseConnector;

class Mail
{
    public function fire($job, $data)
    {
        Manager::connection()->table('handled')->insert(['id' => $data['n'], 'pushed_at' => $data['at'], 'handled_at' => microtime(true)]);
        $job->delete();
    }
}

$container = new Container();
Container::setInstance($container);
$manager = new Manager($container);
$manager->addConnection(['driver' => 'mysql', 'host' => getenv('DB_HOST'), 'port' => getenv('DB_PORT'), 'database' => getenv('DB_NAME'),
    'username' => getenv('DB_USER'), 'password' => getenv('DB_PASSWORD'), 'charset' => 'utf8mb4', 'collation' => 'utf8mb4_general_ci', 'prefix' => '']);
$manager->setAsGlobal();
$connector = $argv[1] === 'wake' ? new WakingConnector($manager->getDatabaseManager()) : new DatabaseConnector($manager->getDatabaseManager());
$queue = $connector->connect(['table' => 'jobs', 'queue' => 'default', 'retry_after' => (int) (getenv('RETRY_AFTER') ?: 90)]);
$queue->setContainer($container);
$queue->setConnectionName('database');
switch ($argv[1]) {
    case 'push': // each line of the input is a number
        while (($n = fgets(STDIN)) !== false) {
            $queue->push('Mail', ['n' => (int) $n, 'at' => microtime(true)]);
        }
        exit;
    case 'later':
        $queue->later(5, 'Mail', ['n' => (int) $argv[2], 'at' => microtime(true)]);
        exit;
}
while (true) {
    if ($job = $queue->pop()) {
        $job->fire();
    } elseif ($argv[1] === 'work') {
        sleep(3); // as queue:work does
    }
}
