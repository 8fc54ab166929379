<?php

namespace App\Messenger;

use Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;
use Symfony\Component\Messenger\Transport\TransportFactoryInterface;
use Symfony\Component\Messenger\Transport\TransportInterface;

class WakingTransportFactory implements TransportFactoryInterface
{
    public function __construct(private $doctrine) {}

    public function createTransport(string $dsn, array $options, SerializerInterface $serializer): TransportInterface
    {
        unset($options['transport_name'], $options['use_notify'], $options['check_delayed_interval']);
        $configuration = WakingConnection::buildConfiguration($dsn, $options);
        return new DoctrineTransport(new WakingConnection($configuration, $this->doctrine->getConnection($configuration['connection'])), $serializer);
    }

    public function supports(string $dsn, array $options): bool
    {
        return str_starts_with($dsn, 'waking://');
    }
}
