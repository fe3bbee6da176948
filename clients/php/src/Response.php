<?php

declare(strict_types=1);

namespace MailAppliance;

/** An HTTP answer that was read whole, or up to the limit. */
final class Response
{
    /** The most of an answer that a transport reads; the rest is cut off. */
    public const MAX_BODY = 16 * 1024 * 1024; // bytes

    /** @var array<string, string> by lower-case name */
    private readonly array $headers;

    /** @param array<string, string> $headers */
    public function __construct(
        public readonly int $status,
        array $headers,
        public readonly string $body,
    ) {
        $this->headers = array_change_key_case($headers);
    }

    public function header(string $name): ?string
    {
        return $this->headers[strtolower($name)] ?? null;
    }
}
