<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * Decides what follows an attempt: its result, another attempt after a pause, or an error.
 *
 *     outcome of the attempt                          | retries left     | none left
 *     ------------------------------------------------+------------------+------------------
 *     2xx, a JSON object with an id                   | Answer           | Answer
 *     failure, retryable                              | pause            | ConnectionFailed
 *     failure, not retryable                          | ConnectionFailed | ConnectionFailed
 *     429, 503, 409 idempotency_in_progress           | pause            | ApiError
 *       the same, with Retry-After over 30 s          | ApiError         | ApiError
 *     anything else, redirects too                    | ApiError         | ApiError
 *
 * Pure: the time and the random number are given.
 *
 * @internal
 */
final class RetryPlan
{
    private const LONGEST_RETRY_AFTER = 30; // seconds; a longer wait is the caller's decision
    private const RETRY_AFTER_SPREAD = 0.1; // of Retry-After, added at random: clients refused together come back apart
    private const FIRST_BACKOFF = 0.5;      // seconds; doubles with every retry
    private const LONGEST_BACKOFF = 8.0;    // seconds

    // RFC 9110 5.6.7: the date format to send, and the two obsolete ones to accept.
    private const HTTP_DATES = ['!D, d M Y H:i:s \G\M\T', '!l, d-M-y H:i:s \G\M\T', '!D M j H:i:s Y'];

    public function __construct(private readonly int $retries, private readonly ?string $idempotencyKey = null, private readonly bool $isBatch = false)
    {
    }

    /**
     * @param int   $retried retries made so far
     * @param float $now     Unix seconds
     * @param float $random  between 0 and 1
     *
     * @return Answer|float|MailApplianceError the result, or the seconds to pause before the next attempt, or the error to throw
     */
    public function next(int $retried, Response|TransportFailure $outcome, float $now, float $random): Answer|float|MailApplianceError
    {
        $retriesLeft = $retried < $this->retries;
        if ($outcome instanceof TransportFailure) {
            return $retriesLeft && $outcome->retryable
                ? self::backoff($retried, $random)
                : new ConnectionFailed($outcome->getMessage(), $this->idempotencyKey, $outcome);
        }
        if ($answer = Answer::of($outcome, $this->isBatch)) {
            return $answer;
        }
        $error = $this->error($outcome, $now);
        if (!$retriesLeft || !self::isRetryable($error) || $error->retryAfter > self::LONGEST_RETRY_AFTER) {
            return $error;
        }

        return $error->retryAfter === null
            ? self::backoff($retried, $random)
            : $error->retryAfter * (1 + self::RETRY_AFTER_SPREAD * $random);
    }

    private static function isRetryable(ApiError $error): bool
    {
        return match ($error->status) {
            429, 503 => true,
            409 => $error instanceof IdempotencyInProgress,
            default => false,
        };
    }

    private static function backoff(int $retried, float $random): float
    {
        return $random * min(self::LONGEST_BACKOFF, self::FIRST_BACKOFF * 2 ** $retried);
    }

    private function error(Response $response, float $now): ApiError
    {
        $object = JsonObject::parse($response->body);
        $message = $object?->string('error');
        $code = $object?->string('code');
        if ($message === null || $code === null) {
            $message = self::describe($response);
            $code = null;
        }
        $class = ApiError::classOf($code);

        return new $class(
            message: $message,
            status: $response->status,
            errorCode: $code,
            requestId: $object?->string('request_id') ?? $response->header('X-Request-ID'),
            retryAfter: self::retryAfter($response->header('Retry-After'), $now),
            idempotencyKey: $this->idempotencyKey,
        );
    }

    /** The status and the beginning of the text, as valid UTF-8 on one line. */
    private static function describe(Response $response): string
    {
        $text = json_decode(json_encode(substr($response->body, 0, 1000), JSON_INVALID_UTF8_SUBSTITUTE | JSON_THROW_ON_ERROR));
        preg_match('/^.{0,200}/u', trim(preg_replace('/\s+/u', ' ', $text)), $beginning);

        return rtrim("unexpected answer with status {$response->status}: {$beginning[0]}", ': ');
    }

    /** Seconds; null when there is no header or it cannot be read. */
    private static function retryAfter(?string $header, float $now): ?int
    {
        $value = trim($header ?? '');
        if (preg_match('/^\d+$/D', $value)) {
            return (int) $value;
        }
        foreach (self::HTTP_DATES as $format) {
            $date = \DateTimeImmutable::createFromFormat($format, $value, new \DateTimeZone('UTC'));
            if ($date !== false) {
                return max(0, (int) ceil($date->getTimestamp() - $now));
            }
        }

        return null;
    }
}
