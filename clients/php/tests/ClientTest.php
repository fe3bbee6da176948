<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\ApiError;
use MailAppliance\Attachment;
use MailAppliance\Client;
use MailAppliance\ConfigurationError;
use MailAppliance\ConnectionFailed;
use MailAppliance\IdempotencyConflict;
use MailAppliance\InvalidRequest;
use MailAppliance\NotFound;
use MailAppliance\RateLimited;
use MailAppliance\SentEmail;
use MailAppliance\ServiceUnavailable;
use MailAppliance\WaitTimeout;
use PHPUnit\Framework\TestCase;

/** The client with its real transport, against a real server on the loopback interface. Only the pauses are not real. */
final class ClientTest extends TestCase
{
    private const EMAIL = ['from' => 'a@example.com', 'to' => 'b@example.net', 'subject' => 'Grüße 🎉', 'text' => "x\u{2028}y"];

    private FakeClock $clock;

    protected function setUp(): void
    {
        $this->clock = new FakeClock();
    }

    private function client(LoopbackServer $server, mixed ...$options): Client
    {
        return new Client(...$options + ['url' => $server->url, 'token' => 'ma_live_x', 'clock' => $this->clock]);
    }

    /** A send is one POST with these headers and this body, and its result is typed. */
    public function testSend(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted([
            'from' => 'a@example.com', 'to' => ['b@example.net'], 'cc' => [], 'subject' => 'Grüße 🎉', 'billing_status' => 'reserved', 'recipient_count' => 1,
            'credits_reserved' => 1, 'headers' => ['X-A' => 'b'], 'tags' => ['t'], 'attachments' => [['filename' => 'a.bin', 'content_type' => 'x/y', 'size' => 3, 'content_id' => null]],
            'a_field_of_the_future' => ['x'], 'bcc' => null,
        ])]);
        $result = $this->client($server)->send(self::EMAIL + ['attachments' => [Attachment::fromBytes("\0\1\2", 'a.bin')]], idempotencyKey: 'order 17');
        [$request] = $server->seen(1);
        self::assertSame(['POST', '/emails'], [$request['method'], $request['path']]);
        self::assertSame(self::EMAIL + ['attachments' => [['filename' => 'a.bin', 'content' => 'AAEC']]], json_decode($request['body'], true));
        $headers = $request['headers'];
        unset($headers['host'], $headers['content-length']);
        ksort($headers);
        self::assertSame([
            'accept' => 'application/json',
            'authorization' => 'Bearer ma_live_x',
            'content-type' => 'application/json',
            'idempotency-key' => 'order 17',
            'user-agent' => 'mail-appliance-php/1.2.0 php/' . \PHP_MAJOR_VERSION . '.' . \PHP_MINOR_VERSION . '.' . \PHP_RELEASE_VERSION,
        ], $headers);
        self::assertSame(
            ['msg_1', 'order 17', false, 'queued', 'api', 'req_1', 'a@example.com', ['b@example.net'], [], null, null, 'Grüße 🎉', 'reserved', 1, 1, ['X-A' => 'b'], ['t']],
            \array_slice(array_values(get_object_vars($result)), 0, 17),
        );
        self::assertSame(['a.bin', 'x/y', 3, null], array_values(get_object_vars($result->attachments[0])));
    }

    /** Idempotent-Replayed, and values that the library does not know, arrive; the request id may be only in the header. */
    public function testReplayed(): void
    {
        $body = ['id' => 'm', 'status' => 'parked', 'source' => 'fax'];
        $server = new LoopbackServer([LoopbackServer::json(202, $body, ['headers' => ['Idempotent-Replayed' => 'true', 'X-Request-ID' => 'req_h']])]);
        $result = $this->client($server)->send(self::EMAIL);
        self::assertSame([true, 'parked', 'fax', 'req_h'], [$result->replayed, $result->status, $result->source, $result->requestId]);
    }

    /** Every kind of failure that may pass is retried with the same key and the same bytes, and with the pauses of the plan. */
    public function testRetries(): void
    {
        $server = new LoopbackServer([
            ['drop' => true],
            LoopbackServer::accepted(more: ['cut' => 10]),
            LoopbackServer::error(503, 'temporary_failure', ['headers' => ['Retry-After' => '7']]),
            LoopbackServer::error(409, 'idempotency_in_progress', ['headers' => ['Retry-After' => '1']]),
            LoopbackServer::error(429, 'rate_limited'),
            LoopbackServer::accepted(),
        ]);
        $result = $this->client($server, retries: 5)->send(self::EMAIL);
        $requests = $server->seen(6);
        self::assertMatchesRegularExpression('/^auto_[0-9a-f-]{36}$/', $result->idempotencyKey);
        self::assertSame([$result->idempotencyKey], array_values(array_unique(array_map(static fn ($r) => $r['headers']['idempotency-key'], $requests))));
        self::assertCount(1, array_unique(array_column($requests, 'body')));
        self::assertCount(5, $this->clock->pauses);
        foreach ([[0, 0.5], [0, 1], [7, 7.7], [1, 1.1], [0, 8]] as $n => [$shortest, $longest]) {
            self::assertGreaterThanOrEqual($shortest, $this->clock->pauses[$n]);
            self::assertLessThanOrEqual($longest, $this->clock->pauses[$n]);
        }
        self::assertTrue($server->sawNothingMore());
    }

    /** After the last retry the error is thrown, with the key. */
    public function testRetriesUsedUp(): void
    {
        $server = new LoopbackServer([LoopbackServer::error(503, 'service_unavailable')]);
        try {
            $this->client($server)->send(self::EMAIL, 'k');
            self::fail('no error');
        } catch (ServiceUnavailable $error) {
            self::assertSame([503, 'service_unavailable', 'req_9', null, 'k', 'the service_unavailable error'], [$error->status, $error->errorCode, $error->requestId, $error->retryAfter, $error->idempotencyKey, $error->getMessage()]);
        }
        self::assertCount(4, $server->seen(4));
        self::assertTrue($server->sawNothingMore());
    }

    /**
     * What another attempt cannot mend is thrown at once.
     *
     * @dataProvider hopeless
     */
    public function testNotRetried(array $answer, string $class): void
    {
        $server = new LoopbackServer([$answer, LoopbackServer::accepted()]);
        try {
            $this->client($server)->send(self::EMAIL);
            self::fail('no error');
        } catch (ApiError $error) {
            self::assertSame($class, $error::class);
            self::assertSame($answer['status'], $error->status);
            self::assertStringStartsWith('auto_', $error->idempotencyKey);
        }
        self::assertSame([], $this->clock->pauses);
        $server->seen(1);
        self::assertTrue($server->sawNothingMore());
    }

    public static function hopeless(): iterable
    {
        yield 'invalid' => [LoopbackServer::error(400, 'invalid_request'), InvalidRequest::class];
        yield 'conflict' => [LoopbackServer::error(409, 'idempotency_conflict'), IdempotencyConflict::class];
        yield 'an hour' => [LoopbackServer::error(429, 'rate_limited', ['headers' => ['Retry-After' => '3600']]), RateLimited::class];
        yield 'a proxy' => [['status' => 502, 'body' => '<html>'], ApiError::class];
        yield 'a redirect' => [['status' => 307, 'headers' => ['Location' => '/elsewhere']], ApiError::class];
        yield 'a success without an id' => [['status' => 202, 'body' => '{}'], ApiError::class];
    }

    /** A key that is not allowed, an email that is no JSON and an empty id never become requests. */
    public function testCallersMistakes(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        $client = $this->client($server);
        $calls = [
            [' ', static fn () => $client->send(self::EMAIL, ' ')],
            ['k', static fn () => $client->send(['text' => "\xff"], 'k')],
            [null, static fn () => $client->get('')],
            [null, static fn () => $client->wait('')],
            [null, static fn () => new Client($server->url, token: 't', retries: -1)],
            [null, static fn () => new Client($server->url, token: 't', timeout: 0)],
            [null, static fn () => new Client($server->url, token: 't', connectTimeout: \NAN)],
        ];
        foreach ($calls as [$key, $call]) {
            try {
                $call();
                self::fail('no error');
            } catch (ConfigurationError $error) {
                self::assertSame($key, $error->idempotencyKey);
            }
        }
        self::assertTrue($server->sawNothingMore());
    }

    /** get() encodes the id and reads the message with its recipients; it is retried like a send. */
    public function testGet(): void
    {
        $message = ['id' => 'a/b ü', 'status' => 'partial', 'source' => 'smtp', 'created_at' => '2026-11-16T12:00:00+01:00', 'recipients' => [
            ['id' => 'rcp_1', 'email' => 'b@example.net', 'status' => 'bounced', 'attempt_count' => 1, 'last_smtp_code' => 550, 'bounced_at' => '2026-11-16T12:00:01Z', 'delivered_at' => 'soon'],
        ]];
        $server = new LoopbackServer([LoopbackServer::error(503, 'service_unavailable'), LoopbackServer::json(200, $message), LoopbackServer::error(404, 'not_found')]);
        $client = $this->client($server);
        $got = $client->get('a/b ü');
        self::assertSame(['a/b ü', 'partial', 'smtp', true], [$got->id, $got->status, $got->source, $got->isFinal()]);
        self::assertSame(1_794_826_800, $got->createdAt->getTimestamp());
        [$recipient] = $got->recipients;
        self::assertSame(['bounced', 550, 1, null, null, '12:00:01'], [$recipient->status, $recipient->lastSmtpCode, $recipient->attemptCount, $recipient->lastSmtpResponse, $recipient->deliveredAt, $recipient->bouncedAt->format('H:i:s')]);
        foreach ($server->seen(2) as $request) {
            self::assertSame(['GET', '/emails/a%2Fb%20%C3%BC', ''], [$request['method'], $request['path'], $request['body']]);
            self::assertArrayNotHasKey('idempotency-key', $request['headers']);
            self::assertArrayNotHasKey('content-type', $request['headers']);
        }
        $this->expectException(NotFound::class);
        $client->get('other');
    }

    /** wait() polls until the message is final, with growing pauses. */
    public function testWait(): void
    {
        $queued = LoopbackServer::json(200, ['id' => 'msg_1', 'status' => 'queued']);
        $server = new LoopbackServer([$queued, $queued, LoopbackServer::json(200, ['id' => 'msg_1', 'status' => 'delivered'])]);
        self::assertSame('delivered', $this->client($server)->wait('msg_1')->status);
        self::assertSame([0.5, 0.75], $this->clock->pauses);
    }

    /** wait() ends with its time, and shows the message as last seen. */
    public function testWaitTimeout(): void
    {
        $server = new LoopbackServer([LoopbackServer::json(200, ['id' => 'msg_1', 'status' => 'odd'])]);
        try {
            $this->client($server)->wait('msg_1', timeout: 2);
            self::fail('no error');
        } catch (WaitTimeout $error) {
            self::assertSame('odd', $error->lastMessage->status);
        }
        self::assertSame([0.5, 0.75, 0.75], $this->clock->pauses);
        self::assertCount(4, $server->seen(4));
    }

    /** sendAll() has 16 requests under way at the same time: the server answers none of them before all have arrived. */
    public function testSendAllAtTheSameTime(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted(more: ['hold' => 16])]);
        $results = $this->client($server)->sendAll(array_fill(0, 32, self::EMAIL));
        self::assertCount(32, $results);
        self::assertContainsOnlyInstancesOf(SentEmail::class, $results);
        $requests = $server->seen(32);
        self::assertCount(32, array_unique(array_map(static fn ($r) => $r['headers']['idempotency-key'], $requests)));
        self::assertCount(16, array_unique(array_column($requests, 'connection')));
    }

    /** Each of sendAll()'s emails has its own retries, key and result or error, in the emails' order. */
    public function testSendAllEachByItself(): void
    {
        $server = new LoopbackServer([
            LoopbackServer::error(503, 'service_unavailable', ['headers' => ['Retry-After' => '2']]),
            LoopbackServer::accepted(),
        ]);
        $emails = (static function (): \Generator {
            yield 'x' => self::EMAIL;
            yield 'x' => ['text' => "\xff"];
            yield 'x' => self::EMAIL;
        })();
        [$first, $second, $third] = $this->client($server)->sendAll($emails, ['one', 'two']);
        self::assertSame('one', $first->idempotencyKey);
        self::assertInstanceOf(ConfigurationError::class, $second);
        self::assertSame('two', $second->idempotencyKey);
        self::assertStringStartsWith('auto_', $third->idempotencyKey);
        $keys = array_map(static fn ($r) => $r['headers']['idempotency-key'], $server->seen(3));
        self::assertEqualsCanonicalizing(['one', $third->idempotencyKey], array_unique($keys));
        self::assertEqualsWithDelta(2.1, array_sum($this->clock->pauses), 0.1001);
        self::assertSame([], $this->client($server)->sendAll([]));
    }

    /** The emails of sendAll() may themselves be made with the help of the same client. */
    public function testSendAllNested(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        $client = $this->client($server);
        $results = $client->sendAll((static function () use ($client): \Generator {
            yield self::EMAIL;
            $inner = $client->sendAll([self::EMAIL, self::EMAIL]);
            yield ['subject' => $inner[1]->id . $client->send(self::EMAIL)->id] + self::EMAIL;
        })());
        self::assertContainsOnlyInstancesOf(SentEmail::class, $results);
        self::assertCount(2, $results);
        self::assertCount(5, $server->seen(5));
    }

    /** An iterable that throws ends sendAll(); what it had started does not disturb the next call. */
    public function testSendAllInterrupted(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        $client = $this->client($server);
        try {
            $client->sendAll((static function (): \Generator {
                yield self::EMAIL;
                throw new \DomainException('no more');
            })(), ['dropped']);
            self::fail('no error');
        } catch (\DomainException) {
        }
        self::assertCount(1, $client->sendAll([self::EMAIL], ['second']));
        $client->send(self::EMAIL, 'third');
        self::assertSame(['second', 'third'], array_map(static fn ($r) => $r['headers']['idempotency-key'], $server->seen(2)));
        self::assertTrue($server->sawNothingMore());
    }

    /** The named constructors and the environment make the same client. */
    public function testConstructors(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        Client::basic($server->url, 'user', 'pass')->send(self::EMAIL);
        Client::token("{$server->url}/", 'tok')->send(self::EMAIL);
        putenv("MAIL_APPLIANCE_URL={$server->url}/prefix/");
        $_ENV['MAIL_APPLIANCE_TOKEN'] = 'envtok';
        try {
            Client::fromEnvironment()->send(self::EMAIL);
        } finally {
            putenv('MAIL_APPLIANCE_URL');
            unset($_ENV['MAIL_APPLIANCE_TOKEN']);
        }
        self::assertSame(
            [['/emails', 'Basic dXNlcjpwYXNz'], ['/emails', 'Bearer tok'], ['/prefix/emails', 'Bearer envtok']],
            array_map(static fn ($r) => [$r['path'], $r['headers']['authorization']], $server->seen(3)),
        );
    }

    /** A dump of the client, as in a bug report, shows no credentials. */
    public function testDump(): void
    {
        self::assertStringNotContainsString('hunter2', print_r(Client::basic('http://127.0.0.1', 'user', 'hunter2'), true));
    }

    /** A server that does not listen is ConnectionFailed, after the retries. */
    public function testRefused(): void
    {
        try {
            (new Client('http://127.0.0.1:1', token: 't', retries: 2, clock: $this->clock))->send(self::EMAIL, 'k');
            self::fail('no error');
        } catch (ConnectionFailed $error) {
            self::assertSame('k', $error->idempotencyKey);
        }
        self::assertCount(2, $this->clock->pauses);
    }
}
