<?php

declare(strict_types=1);

namespace MailAppliance;

/** Time as the client sees it. Tests give a client one of their own, so that no pause is real. */
interface Clock
{
    /** Unix seconds. */
    public function now(): float;

    /** Seconds from an arbitrary start, never going back. */
    public function monotonic(): float;

    public function sleep(float $seconds): void;
}
