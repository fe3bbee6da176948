<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\Clock;

/** A clock that only sleep() moves, and that remembers the pauses. */
final class FakeClock implements Clock
{
    /** @var list<float> */
    public array $pauses = [];

    public function __construct(private float $time = 1_700_000_000.0)
    {
    }

    public function now(): float
    {
        return $this->time;
    }

    public function monotonic(): float
    {
        return $this->time;
    }

    public function sleep(float $seconds): void
    {
        $this->pauses[] = $seconds;
        $this->time += $seconds;
    }
}
