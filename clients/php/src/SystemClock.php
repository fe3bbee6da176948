<?php

declare(strict_types=1);

namespace MailAppliance;

final class SystemClock implements Clock
{
    public function now(): float
    {
        return microtime(true);
    }

    public function monotonic(): float
    {
        return hrtime(true) / 1e9;
    }

    public function sleep(float $seconds): void
    {
        // A signal ends usleep() early: sleep again until the time is over.
        $end = $this->monotonic() + $seconds;
        while (($left = $end - $this->monotonic()) > 0) {
            usleep((int) ceil($left * 1e6));
        }
    }
}
