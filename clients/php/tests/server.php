<?php

declare(strict_types=1);

/**
 * A scripted HTTP server on 127.0.0.1. Its argument is a JSON object: `answers`, one for each request in order of arrival
 * (the last one is repeated), and optionally `certificate`, a PEM file, for TLS. It writes its port on the first line, then
 * one JSON line for each connection that ended before a request, and one for each request.
 *
 * An answer has `status`, `headers` and `body`, and may have
 *   drop    true: close the connection instead of answering
 *   cut     send only so many bytes of the body, then close
 *   drip    true: send a byte now and then, for ever
 *   hold    answer only when so many requests are waiting for an answer
 *   close   true: close the connection after the answer, without a Connection header
 */

set_error_handler(static function (int $level, string $message, string $file, int $line): bool {
    if (error_reporting() & $level) {
        throw new ErrorException($message, 0, $level, $file, $line);
    }

    return false;
});

final class Connection
{
    private const LARGEST_REPORTED = 1000; // bytes

    public string $received = '';
    public bool $asked = false;

    /** @param resource $socket */
    public function __construct(public readonly int $number, public $socket)
    {
    }

    /** The first whole request of what was received, removed from it. */
    public function request(): ?array
    {
        [$head, $rest] = explode("\r\n\r\n", $this->received, 2) + [1 => null];
        if ($rest === null) {
            return null;
        }
        $lines = explode("\r\n", $head);
        [$method, $path] = explode(' ', array_shift($lines));
        $headers = [];
        foreach ($lines as $line) {
            [$name, $value] = explode(':', $line, 2);
            $headers[strtolower($name)] = trim($value);
        }
        $length = (int) ($headers['content-length'] ?? 0);
        if (strlen($rest) < $length) {
            return null;
        }
        $this->received = substr($rest, $length);
        $this->asked = true;
        // A large body would fill the pipe to the test, which reads it only afterwards.
        $body = $length > self::LARGEST_REPORTED ? "{$length} bytes" : substr($rest, 0, $length);

        return ['connection' => $this->number, 'method' => $method, 'path' => $path, 'headers' => $headers, 'body' => $body];
    }
}

final class Server
{
    /** @var array<int, Connection> */
    private array $connections = [];
    /** @var list<array{Connection, array}> requests whose answer is held */
    private array $waiting = [];
    /** @var array<int, float> connections that drip, and the next byte's time */
    private array $dripping = [];
    private int $requests = 0;
    private int $accepted = 0;

    /** @param resource $listener */
    public function __construct(private $listener, private readonly array $script)
    {
    }

    public function run(): never
    {
        while (true) {
            $readable = [-1 => $this->listener];
            foreach ($this->connections as $number => $connection) {
                $readable[$number] = $connection->socket;
            }
            $none = [];
            stream_select($readable, $none, $none, 0, $this->dripping === [] ? 1_000_000 : 20_000);
            foreach (array_keys($readable) as $number) {
                $number === -1 ? $this->accept() : $this->receive($this->connections[$number]);
            }
            $this->drip();
        }
    }

    private function accept(): void
    {
        $socket = stream_socket_accept($this->listener, 1);
        $connection = new Connection(++$this->accepted, $socket);
        if (isset($this->script['certificate']) && !@stream_socket_enable_crypto($socket, true, STREAM_CRYPTO_METHOD_TLS_SERVER)) {
            $this->close($connection);

            return;
        }
        stream_set_blocking($socket, false);
        $this->connections[$connection->number] = $connection;
    }

    private function receive(Connection $connection): void
    {
        $bytes = @fread($connection->socket, 1 << 20);
        if ($bytes === false || $bytes === '') {
            if (feof($connection->socket)) {
                $this->close($connection);
            }

            return;
        }
        $connection->received .= $bytes;
        while (($request = $connection->request()) !== null) {
            $answers = $this->script['answers'];
            $answer = $answers[min($this->requests++, count($answers) - 1)];
            $this->report($request);
            $this->waiting[] = [$connection, $answer];
            if (count($this->waiting) >= ($answer['hold'] ?? 1)) {
                $waiting = $this->waiting;
                $this->waiting = [];
                array_map(fn (array $each) => $this->answer(...$each), $waiting);
            }
        }
    }

    private function answer(Connection $connection, array $answer): void
    {
        if ($answer['drop'] ?? false) {
            $this->close($connection);

            return;
        }
        $body = $answer['body'] ?? '';
        $drip = $answer['drip'] ?? false;
        $head = "HTTP/1.1 {$answer['status']} Scripted\r\nContent-Length: " . ($drip ? 1_000_000 : strlen($body)) . "\r\n";
        foreach ($answer['headers'] ?? [] as $name => $value) {
            $head .= "{$name}: {$value}\r\n";
        }
        $this->write($connection, "{$head}\r\n" . substr($body, 0, $answer['cut'] ?? null));
        if ($drip) {
            $this->dripping[$connection->number] = 0.0;
        }
        if (isset($answer['cut']) || ($answer['close'] ?? false)) {
            $this->close($connection);
        }
    }

    private function drip(): void
    {
        foreach ($this->dripping as $number => $due) {
            if (!isset($this->connections[$number])) {
                unset($this->dripping[$number]);
            } elseif ($due <= microtime(true)) {
                $this->write($this->connections[$number], '.');
                $this->dripping[$number] = microtime(true) + 0.05;
            }
        }
    }

    private function write(Connection $connection, string $bytes): void
    {
        stream_set_blocking($connection->socket, true);
        @fwrite($connection->socket, $bytes);
        stream_set_blocking($connection->socket, false);
    }

    private function close(Connection $connection): void
    {
        unset($this->connections[$connection->number]);
        $this->waiting = array_values(array_filter($this->waiting, static fn (array $each): bool => $each[0] !== $connection));
        @stream_socket_shutdown($connection->socket, STREAM_SHUT_RDWR);
        fclose($connection->socket);
        if (!$connection->asked) {
            $this->report(['connection' => $connection->number]);
        }
    }

    private function report(array $line): void
    {
        fwrite(STDOUT, json_encode($line, JSON_THROW_ON_ERROR) . "\n");
    }
}

$script = json_decode($argv[1], true, 64, JSON_THROW_ON_ERROR);
$context = stream_context_create(['ssl' => ['local_cert' => $script['certificate'] ?? null]]);
$listener = stream_socket_server('tcp://127.0.0.1:0', $code, $text, STREAM_SERVER_BIND | STREAM_SERVER_LISTEN, $context);
fwrite(STDOUT, substr(strrchr(stream_socket_get_name($listener, false), ':'), 1) . "\n");
(new Server($listener, $script))->run();
