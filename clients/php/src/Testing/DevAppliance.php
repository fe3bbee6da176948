<?php

declare(strict_types=1);

namespace MailAppliance\Testing;

use MailAppliance\Client;
use RuntimeException;

/**
 * `appliance dev` for tests end to end: starts it on free ports, waits for messages, and stops it. Messages are in
 * memory.
 */
final class DevAppliance
{
    private const HIDDEN = ['APPLIANCE_CONFIG' => true, 'NOTIFY_SOCKET' => true];

    /** @param resource $process */
    private function __construct(
        private mixed $process,
        public readonly string $url,
        public readonly string $smtpHost,
        public readonly int $smtpPort,
    ) {
    }

    /** Starts it and waits until it listens. `$command` is the program; default: `$APPLIANCE_COMMAND` or `appliance`. */
    public static function start(?string $command = null): self
    {
        $command ??= getenv('APPLIANCE_COMMAND') ?: 'appliance';
        $words = [...explode(' ', $command), 'dev', '--port', '0', '--smtp-port', '0', '--json'];
        $process = proc_open($words, [1 => ['pipe', 'w']], $pipes, null, array_diff_key(getenv(), self::HIDDEN));
        $line = is_resource($process) ? fgets($pipes[1]) : false;
        if (!is_resource($process) || $line === false) {
            throw new RuntimeException("$command dev did not start");
        }
        $addresses = json_decode($line, true, flags: JSON_THROW_ON_ERROR);
        return new self($process, $addresses['url'], $addresses['smtp_host'], $addresses['smtp_port']);
    }

    /** A client that sends to it. */
    public function client(): Client
    {
        return new Client($this->url, token: 'dev');
    }

    /**
     * The newest message to this address or domain, with this part of its subject; waits up to `$timeout` seconds.
     *
     * @return array{id: string, from: string, subject: string, text: ?string, html: ?string, ...}
     */
    public function wait(string $to = '', string $subject = '', int $timeout = 10): array
    {
        $filters = array_filter(['to' => $to, 'subject' => $subject], static fn (string $value): bool => $value !== '');
        $query = http_build_query([...$filters, 'wait' => "{$timeout}s", 'limit' => 1]);
        $email = $this->call('GET', "/v1/emails?$query")['emails'][0] ?? null;
        if ($email === null) {
            throw new RuntimeException('no message with ' . json_encode($filters) . " within $timeout s");
        }
        return [...$email, ...$this->call('GET', "/v1/emails/{$email['id']}/body")];
    }

    /** Deletes all messages. */
    public function clear(): void
    {
        $this->call('DELETE', '/v1/emails');
    }

    /** Stops the server. */
    public function stop(): void
    {
        if (is_resource($this->process)) {
            proc_terminate($this->process);
            proc_close($this->process);
        }
    }

    /** @return array<string, mixed> */
    private function call(string $method, string $path): array
    {
        $context = stream_context_create(['http' => ['method' => $method, 'ignore_errors' => true, 'timeout' => 120]]);
        $answer = file_get_contents($this->url . $path, false, $context);
        $decoded = json_decode((string) $answer, true);
        if (!is_array($decoded) || isset($decoded['error'])) {
            throw new RuntimeException("$method $path: $answer");
        }
        return $decoded;
    }
}
