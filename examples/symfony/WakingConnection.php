<?php
// The connection of Symfony Messenger's Doctrine transport, whose workers wake when a message is sent and do not sleep
// between two looks.
//
// Once:  mqnotify init && mqnotify wake install messenger_messages
// Register WakingTransportFactory with the tag messenger.transport_factory, and give the transport the DSN  waking://default
// Run the workers with  php bin/console messenger:consume --sleep=0

use Symfony\Component\Messenger\Bridge\Doctrine\Transport\Connection;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;
use Symfony\Component\Messenger\Transport\TransportFactoryInterface;
use Symfony\Component\Messenger\Transport\TransportInterface;

class WakingConnection extends Connection
{
    public function get(): ?array
    {
        return parent::get() ?? ($this->wait() ? parent::get() : null);
    }

    /** Waits in the database until there is a message to take, or a delayed or abandoned one is due: for 60 s, or redeliver_timeout. True if there is one. */
    private function wait(): bool
    {
        ['table_name' => $table, 'queue_name' => $queue, 'redeliver_timeout' => $redeliver] = $this->configuration;
        $now = $this->driverConnection->quote(date('Y-m-d H:i:s')); // Symfony stores the times of PHP's time zone
        $messages = "FROM $table WHERE queue_name = " . $this->driverConnection->quote($queue);
        $due = $this->driverConnection->fetchOne("SELECT TIMESTAMPDIFF(SECOND, $now, MIN(IF(delivered_at IS NULL, available_at,
            delivered_at + INTERVAL $redeliver + 1 SECOND))) $messages AND COALESCE(delivered_at, 0) < '9999-12-31'");
        $seconds = max(0, min(60, $redeliver, $due ?? 60));
        return null !== $this->driverConnection->fetchOne('CALL mqnotify_await(?, ?, ?)', [$table,
            "SELECT MAX(id) $messages AND delivered_at IS NULL AND (available_at <= $now OR available_at <= created_at)", $seconds]);
    }
}

class WakingTransportFactory implements TransportFactoryInterface
{
    private $connections;

    public function __construct($registry) // Doctrine\Persistence\ConnectionRegistry
    {
        $this->connections = $registry;
    }

    public function createTransport(string $dsn, array $options, SerializerInterface $serializer): TransportInterface
    {
        $configuration = Connection::buildConfiguration($dsn, array_diff_key($options, ['transport_name' => 0]));
        return new DoctrineTransport(new WakingConnection($configuration, $this->connections->getConnection($configuration['connection'])), $serializer);
    }

    public function supports(string $dsn, array $options): bool
    {
        return str_starts_with($dsn, 'waking://');
    }
}
