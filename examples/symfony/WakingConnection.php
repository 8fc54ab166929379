<?php

namespace App\Messenger;

use Symfony\Component\Messenger\Bridge\Doctrine\Transport\Connection;

/** The connection of Symfony Messenger's Doctrine transport, whose worker wakes when a message is sent. */
class WakingConnection extends Connection
{
    public static int $longest = 40; // seconds; the longest time that a worker needs to notice that it is to stop
    public static bool $utc = true; // false before Symfony 6.3, which stored times in PHP's time zone

    public function get(...$arguments): ?array
    {
        $message = parent::get(...$arguments);
        if (!$message && $this->wait() && !($message = parent::get(...$arguments))) {
            usleep(50000); // another worker has it, or it is delayed
        }
        return $message;
    }

    /** Waits in the database until a message comes, or a delayed or abandoned one is due. True if there is one. */
    private function wait(): bool
    {
        ['table_name' => $table, 'queue_name' => $queue, 'redeliver_timeout' => $redeliver] = $this->configuration;
        $now = $this->driverConnection->quote((self::$utc ? 'gmdate' : 'date')('Y-m-d H:i:s'));
        $messages = "FROM $table WHERE queue_name = " . $this->driverConnection->quote($queue);
        $due = $this->driverConnection->fetchOne("SELECT TIMESTAMPDIFF(SECOND, $now, MIN(IF(delivered_at IS NULL, available_at,
            delivered_at + INTERVAL $redeliver + 1 SECOND))) $messages AND COALESCE(delivered_at, 0) < '9999-12-31'");
        $seconds = max(0, min(self::$longest, $redeliver, $due ?? PHP_INT_MAX));
        // A delayed message that is due within this time wakes, too: the next wait ends when it is due.
        return null !== $this->driverConnection->fetchOne('CALL mqnotify_await(?, ?, ?)', [$table,
            "SELECT MAX(id) $messages AND delivered_at IS NULL AND available_at < $now + INTERVAL $seconds SECOND", $seconds]);
    }
}
