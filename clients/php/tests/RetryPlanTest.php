<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\Answer;
use MailAppliance\ApiError;
use MailAppliance\ConnectionFailed;
use MailAppliance\IdempotencyInProgress;
use MailAppliance\RateLimited;
use MailAppliance\Response;
use MailAppliance\RetryPlan;
use MailAppliance\TransportFailure;
use PHPUnit\Framework\TestCase;

/** The planning core alone: no clock, no network, no randomness. */
final class RetryPlanTest extends TestCase
{
    private const NOW = 784_111_717.0; // 20 seconds before the date of RFC 9110's examples

    /** A 2xx with an object that has an id is the result, at any attempt. */
    public function testSuccess(): void
    {
        foreach ([200, 202, 299] as $status) {
            $next = (new RetryPlan(0))->next(0, new Response($status, [], '{"id":"msg_1"}'), self::NOW, 0.5);
            self::assertInstanceOf(Answer::class, $next);
            self::assertSame('msg_1', $next->id);
        }
    }

    /** A lost connection is retried after a random pause that may grow to 8 seconds, and then is the error. */
    public function testLostConnection(): void
    {
        $plan = new RetryPlan(7, 'key');
        $lost = new TransportFailure('reset');
        self::assertSame([0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0], array_map(static fn (int $n) => $plan->next($n, $lost, self::NOW, 1.0), range(0, 6)));
        self::assertSame(0.0, $plan->next(3, $lost, self::NOW, 0.0));
        self::assertSame(1.0, $plan->next(3, $lost, self::NOW, 0.25));
        $error = $plan->next(7, $lost, self::NOW, 1.0);
        self::assertInstanceOf(ConnectionFailed::class, $error);
        self::assertSame('key', $error->idempotencyKey);
        self::assertSame($lost, $error->getPrevious());
    }

    /** Without retries the first failure is the error; so is a failure that another attempt cannot mend. */
    public function testFailureThatIsNotRetried(): void
    {
        self::assertInstanceOf(ConnectionFailed::class, (new RetryPlan(0))->next(0, new TransportFailure('reset'), self::NOW, 1.0));
        self::assertInstanceOf(ConnectionFailed::class, (new RetryPlan(3))->next(0, new TransportFailure('certificate', false), self::NOW, 1.0));
    }

    /**
     * Only 429, 503 and 409 idempotency_in_progress are retried.
     *
     * @dataProvider statuses
     */
    public function testStatus(int $status, string $code, bool $retried): void
    {
        $response = new Response($status, [], json_encode(['error' => 'no', 'code' => $code, 'request_id' => 'req_1']));
        $next = (new RetryPlan(3, 'key'))->next(0, $response, self::NOW, 1.0);
        if ($retried) {
            self::assertSame(0.5, $next);
            $next = (new RetryPlan(3, 'key'))->next(3, $response, self::NOW, 1.0);
        }
        self::assertInstanceOf(ApiError::class, $next);
        self::assertSame([$status, $code, 'no', 'req_1', null, 'key'], [$next->status, $next->errorCode, $next->getMessage(), $next->requestId, $next->retryAfter, $next->idempotencyKey]);
    }

    public static function statuses(): iterable
    {
        yield [429, 'rate_limited', true];
        yield [429, 'warmup_limited', true];
        yield [503, 'service_unavailable', true];
        yield [503, 'a_code_of_the_future', true];
        yield [409, 'idempotency_in_progress', true];
        yield [409, 'idempotency_conflict', false];
        yield [409, 'conflict', false];
        yield [400, 'invalid_request', false];
        yield [401, 'unauthorized', false];
        yield [402, 'insufficient_credits', false];
        yield [413, 'payload_too_large', false];
        yield [500, 'internal_error', false];
        yield [500, 'idempotency_in_progress', false];
        yield [502, 'service_unavailable', false];
        yield [302, 'rate_limited', false];
    }

    /**
     * Every code has its class; an unknown one has the base class.
     *
     * @dataProvider codes
     */
    public function testCode(string $code, string $class): void
    {
        $error = (new RetryPlan(0))->next(0, new Response(418, [], json_encode(['error' => 'no', 'code' => $code])), self::NOW, 1.0);
        self::assertSame("MailAppliance\\{$class}", $error::class);
        self::assertSame($code, $error->errorCode);
    }

    public static function codes(): iterable
    {
        $codes = ['invalid_request', 'unauthorized', 'forbidden', 'not_found', 'conflict', 'insufficient_credits', 'rate_limited', 'warmup_limited',
            'account_suspended', 'payload_too_large', 'service_unavailable', 'temporary_failure', 'internal_error', 'idempotency_conflict', 'idempotency_in_progress'];
        foreach ($codes as $code) {
            yield $code => [$code, str_replace('_', '', ucwords($code, '_'))];
        }
        yield 'unknown' => ['a_code_of_the_future', 'ApiError'];
    }

    /**
     * Retry-After up to 30 s is the pause, plus at most a tenth; a longer one is an error at once.
     *
     * @dataProvider retryAfters
     */
    public function testRetryAfter(?string $header, ?int $seconds, ?float $shortest, ?float $longest): void
    {
        $response = new Response(429, $header === null ? [] : ['Retry-After' => $header], '{"error":"slow down","code":"rate_limited"}');
        $plan = new RetryPlan(1);
        if ($shortest !== null) {
            self::assertEqualsWithDelta($shortest, $plan->next(0, $response, self::NOW, 0.0), 1e-9);
            self::assertEqualsWithDelta($longest, $plan->next(0, $response, self::NOW, 1.0), 1e-9);
        }
        $error = $plan->next($shortest === null ? 0 : 1, $response, self::NOW, 0.0);
        self::assertInstanceOf(RateLimited::class, $error);
        self::assertSame($seconds, $error->retryAfter);
    }

    public static function retryAfters(): iterable
    {
        yield 'none' => [null, null, 0.0, 0.5];
        yield 'zero' => ['0', 0, 0.0, 0.0];
        yield 'seconds' => ['10', 10, 10.0, 11.0];
        yield 'the longest' => ['30', 30, 30.0, 33.0];
        yield 'too long' => ['31', 31, null, null];
        yield 'an hour' => ['3600', 3600, null, null];
        yield 'more than fits' => ['99999999999999999999', \PHP_INT_MAX, null, null];
        yield 'a date' => ['Sun, 06 Nov 1994 08:49:37 GMT', 60, null, null];
        yield 'a near date' => ['Sun, 06 Nov 1994 08:48:57 GMT', 20, 20.0, 22.0];
        yield 'a date that is over' => ['Sun, 06 Nov 1994 08:00:00 GMT', 0, 0.0, 0.0];
        yield 'a date of RFC 850' => ['Sunday, 06-Nov-94 08:48:57 GMT', 20, 20.0, 22.0];
        yield 'a date of asctime' => ['Sun Nov  6 08:48:57 1994', 20, 20.0, 22.0];
        yield 'a negative number' => ['-5', null, 0.0, 0.5];
        yield 'a word' => ['tomorrow', null, 0.0, 0.5];
    }

    /** 409 in progress honours its Retry-After. */
    public function testInProgress(): void
    {
        $response = new Response(409, ['retry-after' => '1'], '{"error":"wait","code":"idempotency_in_progress"}');
        self::assertEqualsWithDelta(1.1, (new RetryPlan(1))->next(0, $response, self::NOW, 1.0), 1e-9);
        self::assertInstanceOf(IdempotencyInProgress::class, (new RetryPlan(1))->next(1, $response, self::NOW, 1.0));
    }

    /**
     * An answer that is neither a result nor an error object is an ApiError with its status and the beginning of its text.
     *
     * @dataProvider strangeAnswers
     */
    public function testStrangeAnswer(int $status, string $body, string $message): void
    {
        $error = (new RetryPlan(0))->next(0, new Response($status, ['X-Request-Id' => 'req_header'], $body), self::NOW, 1.0);
        self::assertSame(ApiError::class, $error::class);
        self::assertSame($status, $error->status);
        self::assertNull($error->errorCode);
        self::assertSame('req_header', $error->requestId);
        self::assertSame($message, $error->getMessage());
    }

    public static function strangeAnswers(): iterable
    {
        yield 'HTML' => [502, "<html>\n<h1>Bad  Gateway</h1>", 'unexpected answer with status 502: <html> <h1>Bad Gateway</h1>'];
        yield 'nothing' => [502, '', 'unexpected answer with status 502'];
        yield 'invalid UTF-8' => [500, "gr\xfc\xdfe", "unexpected answer with status 500: gr\u{fffd}\u{fffd}e"];
        yield 'long' => [500, str_repeat('é', 1000), 'unexpected answer with status 500: ' . str_repeat('é', 200)];
        yield 'a list' => [200, '[1]', 'unexpected answer with status 200: [1]'];
        yield 'no id' => [202, '{"status":"queued"}', 'unexpected answer with status 202: {"status":"queued"}'];
        yield 'an id that is no string' => [202, '{"id":5}', 'unexpected answer with status 202: {"id":5}'];
        yield 'an error without a code' => [400, '{"error":"no"}', 'unexpected answer with status 400: {"error":"no"}'];
        yield 'a redirect' => [302, '', 'unexpected answer with status 302'];
    }
}
