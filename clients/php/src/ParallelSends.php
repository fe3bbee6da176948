<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * Runs many sends on a parallel transport, each by its own RetryPlan. At most $limit are under way or pausing
 * at the same time, so that the emails of a generator are made only as they are needed.
 *
 * @internal
 */
final class ParallelSends
{
    /** @var array<int, array{Request, RetryPlan, string, int}> by index: request, plan, idempotency key, retries made */
    private array $open = [];

    /** @var array<int, int> indexes by the transport's number */
    private array $running = [];

    /** @var array<int, float> the monotonic time of the next attempt by index */
    private array $pausing = [];

    /** @var array<int, SentEmail|MailApplianceError> by index */
    private array $results = [];

    public function __construct(
        private readonly ParallelTransport $transport,
        private readonly Clock $clock,
        private readonly int $limit,
    ) {
    }

    /** Starts a send, after waiting until fewer than $limit are open. */
    public function add(int $index, Request $request, RetryPlan $plan, string $idempotencyKey): void
    {
        while (\count($this->open) >= $this->limit) {
            $this->step();
        }
        $this->open[$index] = [$request, $plan, $idempotencyKey, 0];
        $this->running[$this->transport->start($request)] = $index;
    }

    public function fail(int $index, MailApplianceError $error): void
    {
        $this->results[$index] = $error;
    }

    /** @return list<SentEmail|MailApplianceError> in the order of the indexes */
    public function finish(): array
    {
        while ($this->open !== []) {
            $this->step();
        }
        ksort($this->results);

        return array_values($this->results);
    }

    /** Drops what is still under way, when the caller's iterable throws. */
    public function cancel(): void
    {
        foreach ($this->running as $number => $index) {
            $this->transport->cancel($number);
        }
        $this->running = $this->pausing = $this->open = [];
    }

    /** Starts the attempts that are due, then waits for the next outcome or the end of the next pause. */
    private function step(): void
    {
        $now = $this->clock->monotonic();
        foreach ($this->pausing as $index => $due) {
            if ($due <= $now) {
                unset($this->pausing[$index]);
                $this->running[$this->transport->start($this->open[$index][0])] = $index;
            }
        }
        $pause = $this->pausing === [] ? 1.0 : max(0.0, min($this->pausing) - $now);
        if ($this->running === []) {
            $this->clock->sleep($pause);

            return;
        }
        foreach ($this->transport->poll(array_keys($this->running), $pause) as $number => $outcome) {
            $index = $this->running[$number];
            unset($this->running[$number]);
            $this->take($index, $outcome);
        }
    }

    private function take(int $index, Response|TransportFailure $outcome): void
    {
        [$request, $plan, $key, $retried] = $this->open[$index];
        $next = $plan->next($retried, $outcome, $this->clock->now(), random_int(0, \PHP_INT_MAX) / \PHP_INT_MAX);
        if (\is_float($next)) {
            $this->pausing[$index] = $this->clock->monotonic() + $next;
            $this->open[$index] = [$request, $plan, $key, $retried + 1];

            return;
        }
        unset($this->open[$index]);
        $this->results[$index] = $next instanceof Answer ? SentEmail::fromAnswer($next, $key) : $next;
    }
}
