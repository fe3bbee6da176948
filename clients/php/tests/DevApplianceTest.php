<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\Testing\DevAppliance;
use PHPUnit\Framework\TestCase;
use RuntimeException;

/** A sign-up test as in the README, against the real program that $APPLIANCE_COMMAND names. */
final class DevApplianceTest extends TestCase
{
    private static ?DevAppliance $appliance = null;

    public static function setUpBeforeClass(): void
    {
        if (getenv('APPLIANCE_COMMAND') !== false) {
            self::$appliance = DevAppliance::start();
        }
    }

    public static function tearDownAfterClass(): void
    {
        self::$appliance?->stop();
    }

    protected function setUp(): void
    {
        self::$appliance === null ? self::markTestSkipped('APPLIANCE_COMMAND is not set') : self::$appliance->clear();
    }

    public function testASignUpMailsALink(): void
    {
        self::$appliance->client()->send([
            'from' => 'shop@my.test',
            'to' => 'ada@example.net',
            'subject' => 'Confirm your address',
            'text' => 'https://my.test/confirm?token=42',
        ]);
        $mail = self::$appliance->wait(to: 'ada@example.net');
        self::assertSame('Confirm your address', $mail['subject']);
        self::assertStringContainsString('confirm?token=42', $mail['text']);
    }

    public function testAMessageThatDoesNotComeIsAnError(): void
    {
        $this->expectException(RuntimeException::class);
        self::$appliance->wait(to: 'ada@example.net', timeout: 0);
    }
}
