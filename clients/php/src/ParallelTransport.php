<?php

declare(strict_types=1);

namespace MailAppliance;

/** A transport that can have several requests under way at the same time. */
interface ParallelTransport extends Transport
{
    /** Starts a request and returns its number. */
    public function start(Request $request): int;

    /**
     * What has finished since the last call, by number; waits at most so many seconds for the first.
     *
     * @return array<int, Response|TransportFailure>
     */
    public function poll(float $seconds): array;

    /** Drops a request that was started. */
    public function cancel(int $number): void;
}
