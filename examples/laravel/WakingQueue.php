<?php
// Laravel's database queue, whose workers wake when a job is pushed and do not sleep between two looks.
//
// Once:  mqnotify init && mqnotify wake install jobs
// In a service provider's boot():
//   Queue::addConnector('waking', fn () => new WakingConnector($this->app['db']));
// In config/queue.php, the connection "database":  'driver' => 'waking'
// Run the workers with  php artisan queue:work --sleep=0

use Illuminate\Queue\Connectors\DatabaseConnector;
use Illuminate\Queue\DatabaseQueue;

class WakingQueue extends DatabaseQueue
{
    public function pop($queue = null)
    {
        return parent::pop($queue) ?? ($this->wait($this->getQueue($queue)) ? parent::pop($queue) : null);
    }

    /** Waits in the database until there is a job to take, or a delayed or abandoned one is due: for 60 s, or retry_after. True if there is one. */
    private function wait(string $queue): bool
    {
        $pdo = $this->database->getPdo();
        $jobs = 'FROM ' . $this->database->getQueryGrammar()->wrapTable($this->table) . ' WHERE queue = ' . $pdo->quote($queue);
        $due = $pdo->query("SELECT MIN(IF(reserved_at IS NULL, available_at, reserved_at + {$this->retryAfter})) - UNIX_TIMESTAMP() $jobs")->fetchColumn();
        $seconds = max(0, min(60, $this->retryAfter, $due ?? 60));
        $await = $pdo->prepare('CALL mqnotify_await(?, ?, ?)');
        $await->execute([$this->database->getTablePrefix() . $this->table,
            "SELECT MAX(id) $jobs AND reserved_at IS NULL AND available_at <= UNIX_TIMESTAMP()", $seconds]);
        $found = $await->fetchColumn() !== null;
        $await->closeCursor();
        return $found;
    }
}

class WakingConnector extends DatabaseConnector
{
    public function connect(array $config)
    {
        return new WakingQueue($this->connections->connection($config['connection'] ?? null), $config['table'],
            $config['queue'], $config['retry_after'] ?? 60, $config['after_commit'] ?? false);
    }
}
