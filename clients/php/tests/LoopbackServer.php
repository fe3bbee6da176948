<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

/** A running tests/server.php, and what it has seen. It ends with this object. */
final class LoopbackServer
{
    private const ANSWER_TIMEOUT = 20.0; // seconds; a busy machine is no fault of the library

    public readonly string $url;

    /** @var resource */
    private $process;

    /** @var array<int, resource> */
    private array $pipes = [];

    private string $buffer = '';

    /** @param list<array<string, mixed>> $answers */
    public function __construct(array $answers, ?string $certificate = null)
    {
        $script = json_encode(['answers' => $answers] + ($certificate === null ? [] : ['certificate' => $certificate]), JSON_THROW_ON_ERROR);
        $fast = $certificate === null ? ['-n'] : []; // without php.ini: the extensions take longest to load
        $this->process = proc_open([\PHP_BINARY, ...$fast, __DIR__ . '/server.php', $script], [['file', '/dev/null', 'r'], ['pipe', 'w'], \STDERR], $this->pipes);
        $this->url = ($certificate === null ? 'http' : 'https') . '://127.0.0.1:' . $this->line();
    }

    public function __destruct()
    {
        proc_terminate($this->process, \SIGKILL);
        proc_close($this->process);
    }

    /** An answer that the appliance gives to an accepted email. */
    public static function accepted(array $fields = [], array $more = []): array
    {
        return self::json(202, $fields + ['id' => 'msg_1', 'status' => 'queued', 'source' => 'api', 'request_id' => 'req_1'], $more);
    }

    public static function error(int $status, string $code, array $more = []): array
    {
        return self::json($status, ['error' => "the {$code} error", 'code' => $code, 'request_id' => 'req_9'], $more);
    }

    public static function json(int $status, array $fields, array $more = []): array
    {
        return $more + ['status' => $status, 'headers' => ['Content-Type' => 'application/json'], 'body' => json_encode($fields, JSON_THROW_ON_ERROR)];
    }

    /**
     * The next so many requests, or connections that ended without one, in order of arrival.
     *
     * @return list<array<string, mixed>>
     */
    public function seen(int $count): array
    {
        $seen = [];
        while (\count($seen) < $count) {
            $seen[] = json_decode($this->line(), true, 64, JSON_THROW_ON_ERROR);
        }

        return $seen;
    }

    /** Whether the server has seen nothing more by now. */
    public function sawNothingMore(): bool
    {
        return $this->buffer === '' && !$this->read(0.1);
    }

    private function line(): string
    {
        $end = microtime(true) + self::ANSWER_TIMEOUT;
        while (!str_contains($this->buffer, "\n")) {
            if (microtime(true) > $end || feof($this->pipes[1])) {
                throw new \RuntimeException('the loopback server says nothing');
            }
            $this->read(1.0);
        }
        [$line, $this->buffer] = explode("\n", $this->buffer, 2);

        return $line;
    }

    private function read(float $seconds): bool
    {
        $readable = [$this->pipes[1]];
        $none = [];
        if (stream_select($readable, $none, $none, 0, (int) ($seconds * 1e6)) !== 1) {
            return false;
        }
        $this->buffer .= fread($this->pipes[1], 1 << 20);

        return true;
    }
}
