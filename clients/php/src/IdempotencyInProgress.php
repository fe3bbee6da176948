<?php

declare(strict_types=1);

namespace MailAppliance;

/** `idempotency_in_progress`: The first request with this idempotency key is still running. */
final class IdempotencyInProgress extends ApiError
{
}
