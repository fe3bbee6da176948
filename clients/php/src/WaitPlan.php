<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * The pauses between the polls of wait(): each longer than the last, none past the end.
 * Pure: the time is given.
 *
 * @internal
 */
final class WaitPlan
{
    private const FIRST_PAUSE = 0.5;  // seconds
    private const GROWTH = 1.5;
    private const LONGEST_PAUSE = 10.0; // seconds

    /** @param float $timeout seconds from the first poll's start */
    public function __construct(private readonly float $timeout)
    {
    }

    /**
     * @param int   $polled  polls made so far, at least 1
     * @param float $elapsed seconds since the first poll's start
     *
     * @return ?float seconds to pause before the next poll; null when the time is up
     */
    public function pause(int $polled, float $elapsed): ?float
    {
        $left = $this->timeout - $elapsed;
        $pause = min(self::LONGEST_PAUSE, self::FIRST_PAUSE * self::GROWTH ** ($polled - 1));

        return $left > 0 ? min($pause, $left) : null;
    }
}
