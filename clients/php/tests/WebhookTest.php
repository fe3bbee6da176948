<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\ConfigurationError;
use MailAppliance\SignatureInvalid;
use MailAppliance\Webhook;
use PHPUnit\Framework\TestCase;

final class WebhookTest extends TestCase
{
    private const SECRET = 'whsec_test';
    private const NOW = 1_700_000_000;
    private const BODY = '{"id":"evt_1","type":"email.bounced","created_at":"2026-11-16T12:00:00.5Z","future":1,'
        . '"data":{"email_id":"msg_1","recipient_id":"rcp_1","to":"ü@example.net","smtp_code":550,"smtp_response":"550 no","future":[]}}';

    private static function sign(string $body = self::BODY, string $secret = self::SECRET, int|string $time = self::NOW): string
    {
        return hash_hmac('sha256', "{$time}.{$body}", $secret);
    }

    /** A good signature gives the typed event. */
    public function testEvent(): void
    {
        $event = Webhook::verify(self::BODY, 't=' . self::NOW . ',v1=' . self::sign(), self::SECRET, now: self::NOW);
        self::assertSame(['evt_1', 'email.bounced'], [$event->id, $event->type]);
        self::assertSame('2026-11-16T12:00:00.500000Z', $event->createdAt->format('Y-m-d\TH:i:s.up'));
        self::assertSame(
            ['emailId' => 'msg_1', 'recipientId' => 'rcp_1', 'to' => 'ü@example.net', 'smtpCode' => 550, 'smtpResponse' => '550 no'],
            array_filter(get_object_vars($event->data), static fn ($value) => $value !== null),
        );
    }

    /** The present time counts when none is given. */
    public function testPresent(): void
    {
        $time = time();
        self::assertSame('evt_1', Webhook::verify(self::BODY, "t={$time},v1=" . self::sign(time: $time), self::SECRET)->id);
        $this->expectException(SignatureInvalid::class);
        Webhook::verify(self::BODY, 't=' . self::NOW . ',v1=' . self::sign(), self::SECRET);
    }

    /**
     * Order, unknown parts, several signatures and several secrets do not matter, as long as one matches.
     *
     * @dataProvider good
     */
    public function testGood(string $header, string|array $secrets, int $now = self::NOW, int $tolerance = 300): void
    {
        self::assertSame('evt_1', Webhook::verify(self::BODY, $header, $secrets, $tolerance, $now)->id);
    }

    public static function good(): iterable
    {
        [$t, $v1, $other] = ['t=' . self::NOW, 'v1=' . self::sign(), 'v1=' . self::sign(secret: 'other')];
        yield ["{$v1},{$t}", self::SECRET];
        yield ["v0=x,{$t}, {$v1} ,x", self::SECRET];
        yield ["{$t},{$other},{$v1}", [self::SECRET]];
        yield ["{$t},{$v1}", ['whsec_old', self::SECRET]];
        yield ["{$t},{$v1}", [self::SECRET, 'whsec_new']];
        yield ["{$t},{$v1}", self::SECRET, self::NOW + 300];
        yield ["{$t},{$v1}", self::SECRET, self::NOW - 300];
        yield ["{$t},{$v1}", self::SECRET, self::NOW, 0];
    }

    /**
     * Everything else is refused.
     *
     * @dataProvider bad
     */
    public function testBad(?string $header, string $body = self::BODY, int $now = self::NOW, int $tolerance = 300): void
    {
        $this->expectException(SignatureInvalid::class);
        Webhook::verify($body, $header, [self::SECRET, 'whsec_second'], $tolerance, $now);
    }

    public static function bad(): iterable
    {
        [$t, $v1] = ['t=' . self::NOW, 'v1=' . self::sign()];
        yield 'none' => [null];
        yield 'empty' => [''];
        yield 'no time' => [$v1];
        yield 'no signature' => [$t];
        yield 'two times' => ["{$t},{$t},{$v1}"];
        yield 'a time that is no number' => ['t=abc,v1=' . self::sign(time: 'abc')];
        yield 'a negative time' => ['t=-5,v1=' . self::sign(time: '-5')];
        yield 'a time with a line break' => ["t=5\n,v1=" . self::sign(time: "5\n")];
        yield 'an endless time' => ['t=' . str_repeat('9', 40) . ',v1=' . self::sign(time: str_repeat('9', 40))];
        yield 'another version' => ["{$t},v2=" . self::sign()];
        yield 'another secret' => ["{$t},v1=" . self::sign(secret: 'test')];
        yield 'another time' => ['t=' . (self::NOW + 1) . ",{$v1}"];
        yield 'half a signature' => [substr("{$t},{$v1}", 0, -32)];
        yield 'an altered body' => ["{$t},{$v1}", str_replace('550', '551', self::BODY)];
        yield 'too old' => ["{$t},{$v1}", self::BODY, self::NOW + 301];
        yield 'ahead' => ["{$t},{$v1}", self::BODY, self::NOW - 301];
        yield 'no tolerance' => ["{$t},{$v1}", self::BODY, self::NOW + 1, 0];
        foreach (['', 'x', '[]', 'null', '{}', '{"id":"e","data":{}}', '{"type":"t","data":{}}', '{"id":1,"type":"t","data":{}}', '{"id":"e","type":"t","data":[]}'] as $body) {
            yield "signed, but no event: {$body}" => ["{$t},v1=" . self::sign($body), $body];
        }
    }

    /**
     * A missing secret is the receiver's own mistake.
     *
     * @dataProvider noSecrets
     */
    public function testNoSecret(string|array|false|null $secrets): void
    {
        $this->expectException(ConfigurationError::class);
        Webhook::verify(self::BODY, 't=' . self::NOW . ',v1=' . self::sign(secret: ''), $secrets, now: self::NOW);
    }

    public static function noSecrets(): iterable
    {
        yield [''];
        yield [[]];
        yield [[self::SECRET, '']];
        yield [null];
        yield [getenv('A_VARIABLE_THAT_IS_NOT_SET')];
        yield [[getenv('A_VARIABLE_THAT_IS_NOT_SET')]];
        yield [[self::SECRET, null]];
    }
}
