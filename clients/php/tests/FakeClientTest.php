<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\ConfigurationError;
use MailAppliance\Conflict;
use MailAppliance\IdempotencyConflict;
use MailAppliance\InsufficientCredits;
use MailAppliance\MailApplianceError;
use MailAppliance\NotFound;
use MailAppliance\SentEmail;
use MailAppliance\Testing\FakeClient;
use PHPUnit\Framework\TestCase;

final class FakeClientTest extends TestCase
{
    private const EMAIL = ['from' => 'a@example.com', 'to' => ['B <b@example.net>', 'b2@example.net'], 'subject' => 's', 'text' => 't'];

    /** It records every email, and answers as the sandbox does. */
    public function testRecords(): void
    {
        $fake = new FakeClient();
        $first = $fake->send(self::EMAIL, 'k');
        $second = $fake->send(['to' => ['bounce@example.net', 'c@example.net']] + self::EMAIL);
        self::assertSame(['queued', 'api', 2, 'k', false, 's'], [$first->status, $first->source, $first->recipientCount, $first->idempotencyKey, $first->replayed, $first->subject]);
        self::assertSame([['email' => self::EMAIL, 'idempotencyKey' => 'k', 'result' => $first]], \array_slice($fake->sent(), 0, 1));
        self::assertSame($second, $fake->sent()[1]['result']);
        self::assertSame('delivered', $fake->wait($first->id)->status);
        self::assertSame('partial', $fake->get($second->id)->status);
        self::assertSame('bounced', $fake->get($second->id)->recipients[0]->status);
        self::assertSame('failed', $fake->wait($fake->send(['to' => 'fail@example.net'] + self::EMAIL)->id)->status);
        $this->expectException(NotFound::class);
        $fake->get('msg_other');
    }

    /** A batch is replayed whole; a scheduled email waits until it is moved or cancelled. */
    public function testBatchesAndSchedules(): void
    {
        $fake = new FakeClient();
        $emails = [self::EMAIL, self::EMAIL + ['scheduled_at' => '2030-01-02T03:04:05Z', 'metadata' => ['17' => 'a']]];
        $first = $fake->sendBatch($emails, idempotencyKey: 'k');
        self::assertSame([2, 0, false, 2], [$first->accepted, $first->refused, $first->replayed, $first->results[0]->recipientCount]);
        self::assertTrue($fake->sendBatch($emails, idempotencyKey: 'k')->replayed);
        $moved = $fake->reschedule($first->results[1]->id, new \DateTimeImmutable('2031-01-01T00:00:00Z'));
        self::assertSame(['queued', 'scheduled', '2031'], [$moved->status, $moved->recipients[0]->status, $moved->scheduledAt->format('Y')]);
        self::assertSame('failed', $fake->cancel($moved->id)->status);
        $failures = [
            IdempotencyConflict::class => static fn () => $fake->sendBatch([self::EMAIL], idempotencyKey: 'k'),
            Conflict::class => static fn () => $fake->cancel($moved->id),
            NotFound::class => static fn () => $fake->cancel('msg_other'),
            ConfigurationError::class => static fn () => $fake->sendBatch([self::EMAIL, ['text' => "\xff"]]),
        ];
        foreach ($failures as $class => $call) {
            try {
                $call();
                self::fail($class);
            } catch (MailApplianceError $error) {
                self::assertInstanceOf($class, $error);
            }
        }
    }

    /** Keys work as with the appliance, and mistakes are found as by the real client. */
    public function testKeys(): void
    {
        $fake = new FakeClient();
        $first = $fake->send(self::EMAIL, 'k');
        $again = $fake->send(self::EMAIL, 'k');
        self::assertSame([true, $first->id], [$again->replayed, $again->id]);
        $results = $fake->sendAll([['text' => 'other'] + self::EMAIL, ['text' => "\xff"], self::EMAIL], ['k', 'l']);
        self::assertSame([IdempotencyConflict::class, ConfigurationError::class, SentEmail::class], array_map('get_class', $results));
    }

    /** A planned error is thrown once. */
    public function testFailWith(): void
    {
        $fake = new FakeClient();
        $fake->failWith(new InsufficientCredits('no credits', 402, 'insufficient_credits'));
        try {
            $fake->send(self::EMAIL);
            self::fail('no error');
        } catch (InsufficientCredits $error) {
            self::assertSame(402, $error->status);
        }
        self::assertSame([], $fake->sent());
        self::assertSame('queued', $fake->send(self::EMAIL)->status);
    }
}
