<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\WaitPlan;
use PHPUnit\Framework\TestCase;

final class WaitPlanTest extends TestCase
{
    /** The pauses grow by half up to 10 seconds, and the last one ends with the time. */
    public function testPauses(): void
    {
        $plan = new WaitPlan(60);
        $pauses = [];
        for ($polled = 1; ($pause = $plan->pause($polled, array_sum($pauses))) !== null; ++$polled) {
            $pauses[] = $pause;
        }
        self::assertSame([0.5, 0.75, 1.125], \array_slice($pauses, 0, 3));
        self::assertEqualsWithDelta(10.0, max($pauses), 1e-9);
        self::assertEqualsWithDelta(60.0, array_sum($pauses), 1e-9);
        self::assertNull((new WaitPlan(0))->pause(1, 0.0));
    }
}
