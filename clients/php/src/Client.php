<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * The client of a mail appliance. It keeps its connections open: make one and use it for all sends.
 * A process that forks makes its client after the fork.
 */
final class Client implements Mailer
{
    public const VERSION = '1.2.0';

    private const MAX_PARALLEL = 16; // requests that sendAll() has under way at the same time

    private readonly Settings $settings;
    private readonly Transport $transport;
    private readonly Clock $clock;

    /**
     * The URL and the credentials that are not given come from the environment: MAIL_APPLIANCE_URL,
     * and MAIL_APPLIANCE_TOKEN or MAIL_APPLIANCE_USERNAME and MAIL_APPLIANCE_PASSWORD.
     *
     * @param ?string $token          a JWT or an API key, instead of username and password
     * @param int     $retries        after a lost connection, a time-out, 429, 503 and 409 idempotency_in_progress
     * @param float   $connectTimeout seconds
     * @param float   $timeout        seconds for one attempt, until the whole answer is read
     *
     * @throws ConfigurationError
     */
    public function __construct(
        ?string $url = null,
        ?string $username = null,
        #[\SensitiveParameter] ?string $password = null,
        #[\SensitiveParameter] ?string $token = null,
        private readonly int $retries = 3,
        private readonly float $connectTimeout = 5.0,
        private readonly float $timeout = 30.0,
        ?Transport $transport = null,
        ?Clock $clock = null,
    ) {
        if ($retries < 0) {
            throw new ConfigurationError('retries must not be negative');
        }
        if (!($connectTimeout > 0 && $timeout > 0)) {
            throw new ConfigurationError('connectTimeout and timeout must be positive');
        }
        $this->settings = Settings::resolve($url, $username, $password, $token, self::variable(...));
        $this->transport = $transport ?? new CurlTransport();
        $this->clock = $clock ?? new SystemClock();
    }

    /** A client with an SMTP credential's username and password. Takes the same options as the constructor. */
    public static function basic(
        string $url,
        string $username,
        #[\SensitiveParameter] string $password,
        int $retries = 3,
        float $connectTimeout = 5.0,
        float $timeout = 30.0,
        ?Transport $transport = null,
    ): self {
        return new self($url, $username, $password, null, $retries, $connectTimeout, $timeout, $transport);
    }

    /** A client with an API key or a JWT. Takes the same options as the constructor. */
    public static function token(
        string $url,
        #[\SensitiveParameter] string $token,
        int $retries = 3,
        float $connectTimeout = 5.0,
        float $timeout = 30.0,
        ?Transport $transport = null,
    ): self {
        return new self($url, null, null, $token, $retries, $connectTimeout, $timeout, $transport);
    }

    /** A client with the URL and the credentials of the environment. */
    public static function fromEnvironment(): self
    {
        return new self();
    }

    public function send(array $email, ?string $idempotencyKey = null): SentEmail
    {
        $key = IdempotencyKey::of($idempotencyKey);

        return SentEmail::fromAnswer($this->call($this->sendRequest($email, $key), $key), $key);
    }

    public function sendBatch(iterable $emails, ?string $onError = null, ?string $idempotencyKey = null): BatchResult
    {
        $key = IdempotencyKey::of($idempotencyKey);
        $request = $this->keyedRequest('/emails/batch', $key, static fn (): string => Payload::encodeBatch($emails, $onError));
        try {
            return BatchResult::fromAnswer($this->call($request, $key, isBatch: true), $key);
        } catch (ApiError $error) {
            throw NotSupported::orSame($error, 'POST /emails/batch', 404, 405);
        }
    }

    public function cancel(string $id): Message
    {
        $path = self::path($id) . '/cancel';
        try {
            return Message::fromAnswer($this->call($this->request('POST', $path, '')));
        } catch (NotFound $error) {
            // An older server and an unknown id both are 404. A GET tells them apart: 405 only where the path has a route.
            try {
                $this->call($this->request('GET', $path));
            } catch (ApiError $route) {
                throw $route->status === 405 ? $error : NotSupported::orSame($route, "POST {$path}", 404);
            }
            throw $error;
        }
    }

    public function reschedule(string $id, \DateTimeInterface|string $scheduledAt): Message
    {
        $path = self::path($id);
        $request = $this->request('PATCH', $path, Payload::encode(['scheduled_at' => $scheduledAt]), ['Content-Type' => 'application/json']);
        try {
            return Message::fromAnswer($this->call($request));
        } catch (ApiError $error) {
            throw NotSupported::orSame($error, "PATCH {$path}", 405);
        }
    }

    public function sendAll(iterable $emails, array $idempotencyKeys = []): array
    {
        $transport = $this->transport;
        if (!$transport instanceof ParallelTransport) {
            return $this->sendInTurn($emails, $idempotencyKeys);
        }
        $sends = new ParallelSends($transport, $this->clock, self::MAX_PARALLEL);
        try {
            $index = 0;
            foreach ($emails as $email) {
                try {
                    $key = IdempotencyKey::of($idempotencyKeys[$index] ?? null);
                    $sends->add($index, $this->sendRequest($email, $key), new RetryPlan($this->retries, $key), $key);
                } catch (ConfigurationError $error) {
                    $sends->fail($index, $error);
                }
                ++$index;
            }

            return $sends->finish();
        } finally {
            $sends->cancel();
        }
    }

    public function get(string $id): Message
    {
        return Message::fromAnswer($this->call($this->request('GET', self::path($id))));
    }

    public function wait(string $id, float $timeout = 60): Message
    {
        $plan = new WaitPlan($timeout);
        $start = $this->clock->monotonic();
        for ($polled = 1;; ++$polled) {
            $message = $this->get($id);
            if ($message->isFinal()) {
                return $message;
            }
            $pause = $plan->pause($polled, $this->clock->monotonic() - $start);
            if ($pause === null) {
                throw new WaitTimeout("the message {$id} is not final after {$timeout} seconds", $message);
            }
            $this->clock->sleep($pause);
        }
    }

    /** Shows no credentials. */
    public function __debugInfo(): array
    {
        return ['url' => $this->settings->url, 'retries' => $this->retries];
    }

    private static function path(string $id): string
    {
        if ($id === '') {
            throw new ConfigurationError('the id of the message is empty');
        }

        return '/emails/' . rawurlencode($id);
    }

    private function call(Request $request, ?string $idempotencyKey = null, bool $isBatch = false): Answer
    {
        $plan = new RetryPlan($this->retries, $idempotencyKey, $isBatch);
        for ($retried = 0;; ++$retried) {
            try {
                $outcome = $this->transport->send($request);
            } catch (TransportFailure $failure) {
                $outcome = $failure;
            }
            $next = $plan->next($retried, $outcome, $this->clock->now(), random_int(0, \PHP_INT_MAX) / \PHP_INT_MAX);
            if ($next instanceof Answer) {
                return $next;
            }
            if ($next instanceof MailApplianceError) {
                throw $next;
            }
            $this->clock->sleep($next);
        }
    }

    /** @param array<string, mixed> $email */
    private function sendRequest(array $email, string $idempotencyKey): Request
    {
        return $this->keyedRequest('/emails', $idempotencyKey, static fn (): string => Payload::encode($email));
    }

    /** @param \Closure(): string $encode */
    private function keyedRequest(string $path, string $idempotencyKey, \Closure $encode): Request
    {
        try {
            $body = $encode();
        } catch (ConfigurationError $error) {
            throw new ConfigurationError($error->getMessage(), $idempotencyKey, $error);
        }

        return $this->request('POST', $path, $body, ['Content-Type' => 'application/json', 'Idempotency-Key' => $idempotencyKey]);
    }

    /** @param array<string, string> $headers */
    private function request(string $method, string $path, ?string $body = null, array $headers = []): Request
    {
        $headers += [
            'Authorization' => $this->settings->authorization,
            'Accept' => 'application/json',
            'User-Agent' => sprintf('mail-appliance-php/%s php/%d.%d.%d', self::VERSION, \PHP_MAJOR_VERSION, \PHP_MINOR_VERSION, \PHP_RELEASE_VERSION),
        ];

        return new Request($method, $this->settings->url . $path, $headers, $body, $this->connectTimeout, $this->timeout);
    }

    /**
     * @param iterable<array<string, mixed>> $emails
     * @param list<?string>                  $idempotencyKeys
     *
     * @return list<SentEmail|MailApplianceError>
     */
    private function sendInTurn(iterable $emails, array $idempotencyKeys): array
    {
        $results = [];
        foreach ($emails as $email) {
            try {
                $results[] = $this->send($email, $idempotencyKeys[\count($results)] ?? null);
            } catch (MailApplianceError $error) {
                $results[] = $error;
            }
        }

        return $results;
    }

    private static function variable(string $name): ?string
    {
        $value = getenv($name);

        // Dotenv libraries often set $_ENV only.
        return \is_string($value) ? $value : (\is_string($_ENV[$name] ?? null) ? $_ENV[$name] : null);
    }
}
