<?php

declare(strict_types=1);

namespace MailAppliance;

/** What a transport throws when no whole answer came. The client turns it into a retry or into ConnectionFailed. */
final class TransportFailure extends \RuntimeException
{
    /** @param bool $retryable false when another attempt cannot help, as with a certificate that does not verify */
    public function __construct(string $message, public readonly bool $retryable = true, ?\Throwable $previous = null)
    {
        parent::__construct($message, 0, $previous);
    }
}
