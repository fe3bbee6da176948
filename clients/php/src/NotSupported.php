<?php

declare(strict_types=1);

namespace MailAppliance;

/** The server has no such route: it is older than this call. Other calls still work. */
final class NotSupported extends ApiError
{
    public const BATCH_SINCE = '0.7'; // version of the server that added batches, cancel and reschedule

    /** The error of a call to this route: NotSupported if it is an error object by which an older server refuses it. */
    public static function orSame(ApiError $error, string $route, int ...$missing): ApiError
    {
        if ($error->errorCode === null || !\in_array($error->status, $missing, true)) {
            return $error;
        }
        $message = "the server does not have {$route}: it is older than version " . self::BATCH_SINCE . '. Upgrade the server.';

        return new self($message, $error->status, $error->errorCode, $error->requestId, $error->retryAfter, $error->idempotencyKey);
    }
}
