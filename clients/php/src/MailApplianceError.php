<?php

declare(strict_types=1);

namespace MailAppliance;

/** The base of everything this library throws. */
abstract class MailApplianceError extends \RuntimeException
{
    /** @param ?string $idempotencyKey the key of the send that failed: a new send with it and the same email is safe */
    public function __construct(
        string $message,
        public readonly ?string $idempotencyKey = null,
        ?\Throwable $previous = null,
    ) {
        parent::__construct($message, 0, $previous);
    }
}
