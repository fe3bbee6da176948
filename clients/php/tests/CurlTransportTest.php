<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\CurlTransport;
use MailAppliance\Request;
use MailAppliance\Response;
use MailAppliance\TransportFailure;
use PHPUnit\Framework\TestCase;

/** What the transport promises beyond the client's tests: connections, time-outs, limits, certificates. */
final class CurlTransportTest extends TestCase
{
    private static function request(LoopbackServer $server, float $timeout = 20.0, ?string $body = '{}'): Request
    {
        return new Request($body === null ? 'GET' : 'POST', "{$server->url}/emails", [], $body, 20.0, $timeout);
    }

    /** One connection serves many requests, also after error answers, and one that the server closed is replaced. */
    public function testConnectionsAreReused(): void
    {
        $ok = ['status' => 200, 'body' => 'x'];
        $server = new LoopbackServer([$ok, ['status' => 500, 'body' => 'y'], $ok, $ok + ['close' => true], $ok]);
        $transport = new CurlTransport();
        for ($n = 0; $n < 4; ++$n) {
            $transport->send(self::request($server));
        }
        try {
            $transport->send(self::request($server));
        } catch (TransportFailure) { // the request was faster than the end of the connection
            $transport->send(self::request($server));
        }
        self::assertSame([1, 1, 1, 1, 2], array_column($server->seen(5), 'connection'));
    }

    /**
     * A kept connection that ends without an answer is a failure: libcurl must not repeat the request unseen.
     *
     * @dataProvider bodies
     */
    public function testNoHiddenRetry(?string $body): void
    {
        $server = new LoopbackServer([['status' => 200, 'body' => 'x'], ['drop' => true], ['status' => 200, 'body' => 'z']]);
        $transport = new CurlTransport();
        $transport->send(self::request($server, body: $body));
        try {
            $transport->send(self::request($server, body: $body));
            self::fail('no failure');
        } catch (TransportFailure $failure) {
            self::assertTrue($failure->retryable);
        }
        $server->seen(2);
        $repeated = $server->sawNothingMore() ? [] : $server->seen(1);
        self::assertSame([], array_column($repeated, 'method'));
        self::assertSame('z', $transport->send(self::request($server, body: $body))->body);
    }

    public static function bodies(): iterable
    {
        yield 'GET' => [null];
        yield 'POST' => ['{}'];
        yield 'a large POST' => ['"' . str_repeat('x', 1_500_000) . '"'];
    }

    /** The time-out is for the whole answer, however steadily its bytes arrive. */
    public function testSlowAnswer(): void
    {
        $server = new LoopbackServer([['status' => 200, 'drip' => true]]);
        $this->expectException(TransportFailure::class);
        $this->expectExceptionMessageMatches('/timed out/i');
        (new CurlTransport())->send(self::request($server, timeout: 0.5));
    }

    /** Of an endless answer 16 MiB are read. */
    public function testLargeAnswer(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        $port = substr(strrchr(stream_socket_get_name($listener, false), ':'), 1);
        $transport = new CurlTransport();
        $number = $transport->start(new Request('GET', "http://127.0.0.1:{$port}/", [], null, 20.0, 60.0));
        $transport->poll([$number], 0.1);
        $socket = stream_socket_accept($listener, 20);
        stream_set_blocking($socket, false);
        fwrite($socket, "HTTP/1.1 200 OK\r\n\r\n");
        $block = str_repeat('x', 1 << 16);
        for ($finished = []; $finished === []; $finished = $transport->poll([$number], 0.01)) {
            @fwrite($socket, $block);
        }
        self::assertInstanceOf(Response::class, $finished[$number]);
        self::assertSame(Response::MAX_BODY, \strlen($finished[$number]->body));
    }

    /** A certificate that does not verify is no reason to try again; one of a given CA is trusted. */
    public function testCertificate(): void
    {
        $file = tempnam(sys_get_temp_dir(), 'pem');
        try {
            file_put_contents($file, self::certificate());
            $server = new LoopbackServer([['status' => 200, 'body' => 'secret']], $file);
            try {
                (new CurlTransport())->send(self::request($server));
                self::fail('trusted');
            } catch (TransportFailure $failure) {
                self::assertFalse($failure->retryable);
                self::assertStringContainsStringIgnoringCase('certificate', $failure->getMessage());
            }
            self::assertSame('secret', (new CurlTransport($file))->send(self::request($server))->body);
        } finally {
            unlink($file);
        }
    }

    /** A connection lost in the TLS handshake may be tried again. */
    public function testLostInHandshake(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        $port = substr(strrchr(stream_socket_get_name($listener, false), ':'), 1);
        $transport = new CurlTransport();
        $number = $transport->start(new Request('GET', "https://127.0.0.1:{$port}/", [], null, 20.0, 20.0));
        $transport->poll([$number], 0.1);
        fclose(stream_socket_accept($listener, 20));
        do {
            $finished = $transport->poll([$number], 1.0);
        } while ($finished === []);
        self::assertInstanceOf(TransportFailure::class, $finished[$number]);
        self::assertTrue($finished[$number]->retryable);
    }

    /** Interim answers are not the answer, and header names have no case. */
    public function testHeaders(): void
    {
        $server = new LoopbackServer([['status' => 200, 'headers' => ['x-OTHER' => ' b ', 'X-Empty' => '']]]);
        $response = (new CurlTransport())->send(self::request($server));
        self::assertSame(['b', '', null], [$response->header('X-Other'), $response->header('x-empty'), $response->header('x-none')]);
    }

    /** A self-signed certificate for 127.0.0.1 and its key, as PEM. */
    private static function certificate(): string
    {
        $config = tempnam(sys_get_temp_dir(), 'cnf');
        try {
            file_put_contents($config, "[req]\ndistinguished_name=dn\n[dn]\n[ext]\nsubjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:TRUE\n");
            $options = ['config' => $config, 'x509_extensions' => 'ext', 'private_key_type' => \OPENSSL_KEYTYPE_EC, 'curve_name' => 'prime256v1', 'private_key_bits' => 2048];
            $key = openssl_pkey_new($options);
            $request = openssl_csr_new(['commonName' => '127.0.0.1'], $key, $options);
            openssl_x509_export(openssl_csr_sign($request, null, $key, 2, $options), $certificate);
            openssl_pkey_export($key, $private, null, $options);

            return $certificate . $private;
        } finally {
            unlink($config);
        }
    }
}
