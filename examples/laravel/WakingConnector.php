<?php

namespace App\Queue;

use Illuminate\Queue\Connectors\DatabaseConnector;

class WakingConnector extends DatabaseConnector
{
    public function connect(array $config)
    {
        return new WakingQueue($this->connections->connection($config['connection'] ?? null), $config['table'],
            $config['queue'], $config['retry_after'] ?? 60, $config['after_commit'] ?? false);
    }
}
