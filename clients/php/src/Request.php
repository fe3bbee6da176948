<?php

declare(strict_types=1);

namespace MailAppliance;

/** An HTTP request for a transport to make, once. */
final class Request
{
    /**
     * @param array<string, string> $headers
     * @param ?string               $body           null for a GET
     * @param float                 $connectTimeout seconds until the connection must stand
     * @param float                 $timeout        seconds from the start until the whole answer must be read
     */
    public function __construct(
        public readonly string $method,
        public readonly string $url,
        public readonly array $headers,
        public readonly ?string $body,
        public readonly float $connectTimeout,
        public readonly float $timeout,
    ) {
    }
}
