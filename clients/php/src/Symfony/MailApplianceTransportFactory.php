<?php

declare(strict_types=1);

namespace MailAppliance\Symfony;

use MailAppliance\Client;
use MailAppliance\ConfigurationError;
use Symfony\Component\Mailer\Exception\InvalidArgumentException;
use Symfony\Component\Mailer\Exception\UnsupportedSchemeException;
use Symfony\Component\Mailer\Transport\AbstractTransportFactory;
use Symfony\Component\Mailer\Transport\Dsn;
use Symfony\Component\Mailer\Transport\TransportInterface;

/**
 * Makes the transport from a DSN:
 *
 *     mail-appliance+https://user:password@mail.example.com
 *     mail-appliance+https://token@mail.example.com:8443?path=/mail&retries=5&timeout=10&connect_timeout=2
 *
 * `mail-appliance://` is the same as `mail-appliance+https://`. The host `default` stands for the URL of the environment.
 */
final class MailApplianceTransportFactory extends AbstractTransportFactory
{
    public function create(Dsn $dsn): TransportInterface
    {
        $scheme = match ($dsn->getScheme()) {
            'mail-appliance', 'mail-appliance+https' => 'https',
            'mail-appliance+http' => 'http',
            default => throw new UnsupportedSchemeException($dsn, 'mail-appliance', $this->getSupportedSchemes()),
        };
        $port = $dsn->getPort() === null ? '' : ":{$dsn->getPort()}";
        $path = trim((string) $dsn->getOption('path', ''), '/');
        $url = $dsn->getHost() === 'default' ? null : "{$scheme}://{$dsn->getHost()}{$port}/{$path}";
        $pair = $dsn->getPassword() !== null;
        try {
            $client = new Client(
                url: $url,
                username: $pair ? $dsn->getUser() : null,
                password: $dsn->getPassword(),
                token: $pair ? null : $dsn->getUser(),
                retries: (int) $dsn->getOption('retries', 3),
                connectTimeout: (float) $dsn->getOption('connect_timeout', 5.0),
                timeout: (float) $dsn->getOption('timeout', 30.0),
            );
        } catch (ConfigurationError $error) {
            throw new InvalidArgumentException("The mailer DSN is invalid: {$error->getMessage()}", 0, $error);
        }

        return new MailApplianceTransport($client, $this->dispatcher, $this->logger);
    }

    protected function getSupportedSchemes(): array
    {
        return ['mail-appliance', 'mail-appliance+https', 'mail-appliance+http'];
    }
}
