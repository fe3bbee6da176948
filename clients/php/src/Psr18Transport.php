<?php

declare(strict_types=1);

namespace MailAppliance;

use Psr\Http\Client\ClientExceptionInterface;
use Psr\Http\Client\ClientInterface;
use Psr\Http\Client\RequestExceptionInterface;
use Psr\Http\Message\RequestFactoryInterface;
use Psr\Http\Message\StreamFactoryInterface;
use Psr\Http\Message\StreamInterface;

/**
 * Sends through a PSR-18 client. PSR-18 has no settings for time-outs and redirects:
 * the given client must have its own time-outs and must not follow redirects.
 */
final class Psr18Transport implements Transport
{
    private const CHUNK = 64 * 1024; // bytes

    public function __construct(
        private readonly ClientInterface $client,
        private readonly RequestFactoryInterface $requests,
        private readonly StreamFactoryInterface $streams,
    ) {
    }

    public function send(Request $request): Response
    {
        $message = $this->requests->createRequest($request->method, $request->url);
        foreach ($request->headers as $name => $value) {
            $message = $message->withHeader($name, $value);
        }
        if ($request->body !== null) {
            $message = $message->withBody($this->streams->createStream($request->body));
        }
        try {
            $response = $this->client->sendRequest($message);
            $body = self::read($response->getBody());
        } catch (ClientExceptionInterface $exception) {
            throw self::failure($exception, !$exception instanceof RequestExceptionInterface);
        } catch (\RuntimeException $exception) { // PSR-7: a stream that cannot be read
            throw self::failure($exception, true);
        }
        $headers = array_map(static fn (array $values): string => $values[0] ?? '', $response->getHeaders());

        return new Response($response->getStatusCode(), $headers, $body);
    }

    /** PSR-18 has no exception for certificates: their errors are known by their text. */
    private static function failure(\Throwable $exception, bool $retryable): TransportFailure
    {
        $text = $exception->getMessage();

        return new TransportFailure("no whole answer from the appliance: {$text}", $retryable && stripos($text, 'certificate') === false, $exception);
    }

    private static function read(StreamInterface $stream): string
    {
        $body = '';
        while (\strlen($body) < Response::MAX_BODY && !$stream->eof()) {
            $body .= $stream->read(min(self::CHUNK, Response::MAX_BODY - \strlen($body)));
        }

        return $body;
    }
}
