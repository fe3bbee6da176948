<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\ApiError;
use MailAppliance\Client;
use MailAppliance\ConnectionFailed;
use MailAppliance\Psr18Transport;
use Nyholm\Psr7\Factory\Psr17Factory;
use PHPUnit\Framework\TestCase;
use Symfony\Component\HttpClient\CurlHttpClient;
use Symfony\Component\HttpClient\Psr18Client;

/** The client over a real PSR-18 client, Symfony's. */
final class Psr18TransportTest extends TestCase
{
    private const EMAIL = ['from' => 'a@example.com', 'to' => 'b@example.net', 'subject' => 's', 'text' => 't'];

    private FakeClock $clock;

    protected function setUp(): void
    {
        if (!class_exists(Psr18Client::class) || !class_exists(Psr17Factory::class)) {
            self::markTestSkipped('needs php-symfony-http-client and php-nyholm-psr7');
        }
        $this->clock = new FakeClock();
    }

    private function client(string $url, array $options = []): Client
    {
        $factory = new Psr17Factory();
        $http = new Psr18Client(new CurlHttpClient($options + ['max_redirects' => 0, 'timeout' => 20]), $factory, $factory);

        return new Client($url, token: 't', retries: 1, transport: new Psr18Transport($http, $factory, $factory), clock: $this->clock);
    }

    /** Requests, answers and retries are the same as with the default transport. */
    public function testSend(): void
    {
        $server = new LoopbackServer([LoopbackServer::error(503, 'service_unavailable', ['headers' => ['Retry-After' => '3']]), LoopbackServer::accepted(more: ['headers' => ['Idempotent-Replayed' => 'true']])]);
        $result = $this->client($server->url)->send(self::EMAIL, 'k');
        self::assertSame(['msg_1', true], [$result->id, $result->replayed]);
        self::assertEqualsWithDelta(3.15, $this->clock->pauses[0], 0.151);
        foreach ($server->seen(2) as $request) {
            self::assertSame(['POST', 'k', 'Bearer t', 'application/json'], [$request['method'], $request['headers']['idempotency-key'], $request['headers']['authorization'], $request['headers']['content-type']]);
            self::assertSame(self::EMAIL, json_decode($request['body'], true));
        }
        self::assertCount(2, $this->client($server->url)->sendAll([self::EMAIL, self::EMAIL]));
    }

    /** An answer that is cut off is a lost connection. */
    public function testCutOff(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted(more: ['cut' => 5])]);
        try {
            $this->client($server->url)->send(self::EMAIL, 'k');
            self::fail('no error');
        } catch (ConnectionFailed $error) {
            self::assertSame('k', $error->idempotencyKey);
        }
        self::assertCount(1, $this->clock->pauses);
    }

    /** A redirect is an error. */
    public function testRedirect(): void
    {
        $server = new LoopbackServer([['status' => 302, 'headers' => ['Location' => '/x']]]);
        $this->expectException(ApiError::class);
        $this->expectExceptionMessage('status 302');
        $this->client($server->url)->get('msg_1');
    }
}
