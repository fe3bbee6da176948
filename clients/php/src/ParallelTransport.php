<?php

declare(strict_types=1);

namespace MailAppliance;

/** A transport that can have several requests under way at the same time. */
interface ParallelTransport extends Transport
{
    /** Starts a request and returns its number. */
    public function start(Request $request): int;

    /**
     * What of these has finished, by number, once each; waits at most so many seconds for the first.
     *
     * @param list<int> $numbers
     *
     * @return array<int, Response|TransportFailure>
     */
    public function poll(array $numbers, float $seconds): array;

    /** Drops a request that was started. */
    public function cancel(int $number): void;
}
