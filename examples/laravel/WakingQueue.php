<?php

namespace App\Queue;

use Illuminate\Queue\DatabaseQueue;

/** Laravel's database queue, whose worker wakes when a job is pushed instead of polling. */
class WakingQueue extends DatabaseQueue
{
    public int $longest = 40; // seconds; the longest time that a worker needs to notice that it is to stop

    public function pop($queue = null)
    {
        $job = parent::pop($queue);
        if (!$job && $this->wait($this->getQueue($queue)) && !($job = parent::pop($queue))) {
            usleep(50000); // another worker has it, or it is delayed
        }
        return $job;
    }

    /** Waits in the database until a job comes, or a delayed or abandoned one is due. True if there is one. */
    private function wait(string $queue): bool
    {
        $pdo = $this->database->getPdo();
        $jobs = 'FROM ' . $this->database->getQueryGrammar()->wrapTable($this->table) . ' WHERE queue = ' . $pdo->quote($queue);
        $now = time();
        $due = $pdo->query("SELECT MIN(IF(reserved_at IS NULL, available_at, reserved_at + {$this->retryAfter})) $jobs")->fetchColumn();
        $seconds = max(0, min($this->longest, $this->retryAfter, ($due ?? PHP_INT_MAX) - $now));
        $await = $pdo->prepare('CALL mqnotify_await(?, ?, ?)');
        // A delayed job that is due within this time wakes, too: the next wait ends when it is due.
        $await->execute([$this->database->getTablePrefix() . $this->table,
            "SELECT MAX(id) $jobs AND reserved_at IS NULL AND available_at < $now + $seconds", $seconds]);
        $found = $await->fetchColumn() !== null;
        $await->closeCursor();
        return $found;
    }
}
