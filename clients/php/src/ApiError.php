<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * An answer that is not a success. An error code of the interface has a subclass of its own;
 * this class itself stands for an unknown code or none, such as a proxy's error page.
 */
class ApiError extends MailApplianceError
{
    private const SUBCLASSES = [
        'invalid_request' => InvalidRequest::class,
        'unauthorized' => Unauthorized::class,
        'forbidden' => Forbidden::class,
        'not_found' => NotFound::class,
        'conflict' => Conflict::class,
        'insufficient_credits' => InsufficientCredits::class,
        'rate_limited' => RateLimited::class,
        'warmup_limited' => WarmupLimited::class,
        'account_suspended' => AccountSuspended::class,
        'payload_too_large' => PayloadTooLarge::class,
        'service_unavailable' => ServiceUnavailable::class,
        'temporary_failure' => TemporaryFailure::class,
        'internal_error' => InternalError::class,
        'idempotency_conflict' => IdempotencyConflict::class,
        'idempotency_in_progress' => IdempotencyInProgress::class,
    ];

    /**
     * @param int     $status     the HTTP status
     * @param ?string $errorCode  the interface's code; null when the answer was not an error object
     * @param ?string $requestId  the appliance's id of the request, for its log
     * @param ?int    $retryAfter seconds; null when the answer did not say
     */
    final public function __construct(
        string $message,
        public readonly int $status,
        public readonly ?string $errorCode = null,
        public readonly ?string $requestId = null,
        public readonly ?int $retryAfter = null,
        ?string $idempotencyKey = null,
    ) {
        parent::__construct($message, $idempotencyKey);
    }

    /** The class whose instances have this code. */
    public static function classOf(?string $errorCode): string
    {
        return self::SUBCLASSES[$errorCode ?? ''] ?? self::class;
    }
}
