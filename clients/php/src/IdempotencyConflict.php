<?php

declare(strict_types=1);

namespace MailAppliance;

/** `idempotency_conflict`: The idempotency key was used before, with another email. */
final class IdempotencyConflict extends ApiError
{
}
