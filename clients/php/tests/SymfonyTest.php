<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\InsufficientCredits;
use MailAppliance\Symfony\MailApplianceTransport;
use MailAppliance\Symfony\MailApplianceTransportFactory;
use MailAppliance\Testing\FakeClient;
use PHPUnit\Framework\TestCase;
use Symfony\Component\Mailer\Envelope;
use Symfony\Component\Mailer\Exception\InvalidArgumentException;
use Symfony\Component\Mailer\Exception\TransportException;
use Symfony\Component\Mailer\Exception\UnsupportedSchemeException;
use Symfony\Component\Mailer\Header\MetadataHeader;
use Symfony\Component\Mailer\Header\TagHeader;
use Symfony\Component\Mailer\Mailer;
use Symfony\Component\Mailer\Transport\Dsn;
use Symfony\Component\Mime\Address;
use Symfony\Component\Mime\Email;
use Symfony\Component\Mime\Header\Headers;
use Symfony\Component\Mime\Message;
use Symfony\Component\Mime\Part\DataPart;
use Symfony\Component\Mime\Part\Multipart\AlternativePart;
use Symfony\Component\Mime\Part\Multipart\MixedPart;
use Symfony\Component\Mime\Part\TextPart;
use Symfony\Component\Mime\RawMessage;

/** The transport under the real Symfony Mailer. */
final class SymfonyTest extends TestCase
{
    private FakeClient $fake;

    protected function setUp(): void
    {
        if (!class_exists(Mailer::class)) {
            self::markTestSkipped('needs php-symfony-mailer');
        }
        $this->fake = new FakeClient();
    }

    private static function email(): Email
    {
        return (new Email())->from('a@example.com')->to('b@example.net')->subject('s')->text('t');
    }

    /** What the client was given for a message. */
    private function sent(RawMessage $message, ?Envelope $envelope = null): array
    {
        (new Mailer(new MailApplianceTransport($this->fake)))->send($message, $envelope);
        self::assertCount(1, $this->fake->sent());

        return $this->fake->sent()[0]['email'];
    }

    /** Everything that JSON can carry arrives, and the Idempotency-Key header is the key and no header. */
    public function testWholeEmail(): void
    {
        $email = (new Email())
            ->from(new Address('a@example.com', 'Ä "Q" \\ Ltd, Inc'))
            ->to('b@example.net', new Address('c@example.net', 'C'))
            ->cc('d@example.net')
            ->bcc('e@example.net')
            ->replyTo(new Address('r@example.com', 'R'))
            ->subject('Grüße 🎉')
            ->text('täxt')
            ->html('<img src="cid:logo.png">')
            ->priority(1)
            ->attach('bytes', 'ä.pdf', 'application/pdf')
            ->embed("\x89PNG", 'logo.png', 'image/png');
        $email->getHeaders()->addTextHeader('Idempotency-Key', 'order-17');
        $email->getHeaders()->addTextHeader('X-Long', str_repeat('ü ', 100) . 'end');
        $email->getHeaders()->addMailboxHeader('X-Via', new Address('v@example.com', 'Vïa'));
        $email->getHeaders()->add(new TagHeader('welcome'));
        $email->getHeaders()->add(new MetadataHeader('order', '17'));
        $email->getHeaders()->addTextHeader('X-Service-Metadata', 'note = a=b');
        $email->getHeaders()->addTextHeader('X-Service-Scheduled-At', '2030-01-02T03:04:05+00:00');
        $sent = $this->sent($email);
        self::assertSame('order-17', $this->fake->sent()[0]['idempotencyKey']);
        [$logo, $pdf] = $sent['attachments'];
        self::assertSame(['ä.pdf', 'bytes', 'application/pdf', null], [$pdf->filename, $pdf->bytes, $pdf->contentType, $pdf->contentId]);
        self::assertSame(['logo.png', "\x89PNG", 'image/png'], [$logo->filename, $logo->bytes, $logo->contentType]);
        self::assertSame("<img src=\"cid:{$logo->contentId}\">", $sent['html']);
        unset($sent['attachments'], $sent['html']);
        self::assertEquals([
            'from' => '"Ä \"Q\" \\\\ Ltd, Inc" <a@example.com>',
            'to' => ['b@example.net', '"C" <c@example.net>'],
            'cc' => ['d@example.net'],
            'bcc' => ['e@example.net'],
            'reply_to' => '"R" <r@example.com>',
            'subject' => 'Grüße 🎉',
            'text' => 'täxt',
            'headers' => [
                'X-Priority' => '1 (Highest)',
                'X-Long' => str_repeat('ü ', 100) . 'end',
                'X-Via' => '=?utf-8?Q?V=C3=AFa?= <v@example.com>',
            ],
            'tags' => ['welcome'],
            'metadata' => ['order' => '17', 'note' => 'a=b'],
            'scheduled_at' => '2030-01-02T03:04:05+00:00',
        ], $sent);
    }

    /** An email that is made again is the same one under its key, also with inline images, whose ids Symfony makes at random. */
    public function testMadeAgain(): void
    {
        foreach ([false, true] as $replayed) {
            $email = self::email()->html('<img src="cid:one.png"><img src="cid:two.png">')->embed('1', 'one.png', 'image/png')->embed('2', 'two.png', 'image/png');
            $email->getHeaders()->addTextHeader('Idempotency-Key', 'order-17');
            (new MailApplianceTransport($this->fake))->send($email);
            $sent = array_slice($this->fake->sent(), -1)[0];
            self::assertSame($replayed, $sent['result']->replayed);
            [$a, $b] = $sent['email']['attachments'];
            self::assertSame("<img src=\"cid:{$a->contentId}\"><img src=\"cid:{$b->contentId}\">", $sent['email']['html']);
            self::assertNotSame($a->contentId, $b->contentId);
        }
    }

    /** The sent message has the appliance's id, and a message without a key header gets an automatic key. */
    public function testMessageId(): void
    {
        $message = (new MailApplianceTransport($this->fake))->send(self::email());
        self::assertSame($this->fake->sent()[0]['result']->id, $message->getMessageId());
        self::assertStringStartsWith('auto_', $this->fake->sent()[0]['idempotencyKey']);
    }

    /** Bodies in other charsets become UTF-8; an inline part without a reference stays inline; tags come also as over SMTP. */
    public function testConversions(): void
    {
        $email = self::email()->text("gr\xfc\xdfe", 'iso-8859-1')->embed('gif', 'dot.gif', 'image/gif');
        $email->getHeaders()->addTextHeader('X-Service-Tag', 'one, two');
        $email->sender('A@example.com');
        $sent = $this->sent($email);
        self::assertSame(['grüße', ['one', 'two']], [$sent['text'], $sent['tags']]);
        self::assertNotNull($sent['attachments'][0]->contentId);
    }

    /** A recipient of the envelope who is in no header is a blind copy. */
    public function testEnvelopeRecipient(): void
    {
        $envelope = new Envelope(new Address('a@example.com'), [new Address('B@example.net'), new Address('z@example.net')]);
        self::assertSame(['z@example.net'], $this->sent(self::email(), $envelope)['bcc']);
    }

    /**
     * What JSON cannot carry is refused and named, and nothing is sent.
     *
     * @dataProvider refused
     */
    public function testRefused(string $named, callable $make): void
    {
        [$message, $envelope] = [...(array) $make(), null];
        try {
            (new MailApplianceTransport($this->fake))->send($message, $envelope);
            self::fail('sent');
        } catch (TransportException $exception) {
            self::assertStringContainsString($named, $exception->getMessage());
        }
        self::assertSame([], $this->fake->sent());
    }

    public static function refused(): iterable
    {
        $with = static fn (callable $change): callable => static function () use ($change): array {
            $email = self::email();
            $change($email);

            return [$email];
        };
        yield 'two authors' => ['more than one From', $with(static fn (Email $email) => $email->addFrom('a2@example.com'))];
        yield 'two Reply-To' => ['more than one Reply-To', $with(static fn (Email $email) => $email->replyTo('x@example.com', 'y@example.com'))];
        yield 'a sender' => ['Sender', $with(static fn (Email $email) => $email->sender('x@example.com')) ];
        yield 'a return path' => ['Return-Path', $with(static fn (Email $email) => $email->returnPath('bounce@example.com'))];
        yield 'a date' => ['Date', $with(static fn (Email $email) => $email->date(new \DateTimeImmutable()))];
        yield 'a message id' => ['Message-ID', $with(static fn (Email $email) => $email->getHeaders()->addIdHeader('Message-ID', 'x@example.com'))];
        yield 'a signature' => ['DKIM-Signature', $with(static fn (Email $email) => $email->getHeaders()->addTextHeader('DKIM-Signature', 'v=1'))];
        yield 'a header twice' => ['x-twice', $with(static fn (Email $email) => $email->getHeaders()->addTextHeader('X-Twice', '1')->addTextHeader('x-twice', '2'))];
        yield 'two keys' => ['Idempotency-Key', $with(static fn (Email $email) => $email->getHeaders()->addTextHeader('Idempotency-Key', '1')->addTextHeader('Idempotency-Key', '2'))];
        yield 'a bad key' => ['idempotency key', $with(static fn (Email $email) => $email->getHeaders()->addTextHeader('Idempotency-Key', 'ä'))];
        yield 'blind copies only' => ['no To address', static fn () => [(new Email())->from('a@example.com')->bcc('b@example.net')->text('t')]];
        yield 'a calendar' => ['text/calendar', $with(static fn (Email $email) => $email->setBody(new AlternativePart(new TextPart('t'), new TextPart('BEGIN', 'utf-8', 'calendar'))))];
        yield 'two texts' => ['more than one text/plain', $with(static fn (Email $email) => $email->setBody(new MixedPart(new TextPart('a'), new TextPart('b'))))];
        yield 'a part with a header' => ['X-Part', $with(static function (Email $email): void {
            $part = new DataPart('x', 'x.txt');
            $part->getHeaders()->addTextHeader('X-Part', '1');
            $email->setBody(new MixedPart(new TextPart('a'), $part));
        })];
        yield 'an attachment without a name' => ['no file name', $with(static fn (Email $email) => $email->attach('x'))];
        yield 'a charset that does not exist' => ['x-unknown', $with(static fn (Email $email) => $email->text('t', 'x-unknown'))];
        yield 'a raw message' => ['raw', static fn () => [new RawMessage("To: b@example.net\r\n\r\nx"), new Envelope(new Address('a@example.com'), [new Address('b@example.net')])]];
        yield 'another envelope sender' => ['envelope sender x@example.com', static fn () => [self::email(), new Envelope(new Address('x@example.com'), [new Address('b@example.net')])]];
        yield 'a recipient left out' => ['b@example.net is in the headers', static fn () => [self::email(), new Envelope(new Address('a@example.com'), [new Address('dev@example.net')])]];
    }

    /** A message that is not an Email, as signers make them, is read by its parts. */
    public function testMessage(): void
    {
        $headers = (new Headers())->addMailboxListHeader('From', ['a@example.com'])->addMailboxListHeader('To', ['b@example.net'])->addTextHeader('Subject', 's');
        $sent = $this->sent(new Message($headers, new AlternativePart(new TextPart('t'), new TextPart('<p>', 'utf-8', 'html'))));
        self::assertSame(['t', '<p>'], [$sent['text'], $sent['html']]);
    }

    /** An error of the appliance is a TransportException, with the error behind it. */
    public function testError(): void
    {
        $this->fake->failWith(new InsufficientCredits('no credits', 402, 'insufficient_credits'));
        try {
            (new MailApplianceTransport($this->fake))->send(self::email());
            self::fail('sent');
        } catch (TransportException $exception) {
            self::assertInstanceOf(InsufficientCredits::class, $exception->getPrevious());
            self::assertStringContainsString('no credits', $exception->getMessage());
        }
    }

    /** The DSN gives URL, credentials and options. */
    public function testFactory(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        $port = parse_url($server->url, \PHP_URL_PORT);
        $factory = new MailApplianceTransportFactory();
        foreach (["user:p%40ss@127.0.0.1:{$port}", "tok@127.0.0.1:{$port}?path=/mail&retries=0&timeout=20&connect_timeout=5"] as $rest) {
            $dsn = Dsn::fromString("mail-appliance+http://{$rest}");
            self::assertTrue($factory->supports($dsn));
            (new Mailer($factory->create($dsn)))->send(self::email());
        }
        self::assertSame(
            [['/emails', 'Basic ' . base64_encode('user:p@ss')], ['/mail/emails', 'Bearer tok']],
            array_map(static fn ($r) => [$r['path'], $r['headers']['authorization']], $server->seen(2)),
        );
        self::assertTrue($factory->supports(Dsn::fromString('mail-appliance://x@y')));
        self::assertSame('mail-appliance', (string) $factory->create(Dsn::fromString('mail-appliance://x@y')));
        self::assertFalse($factory->supports(Dsn::fromString('smtp://x@y')));
    }

    /** A DSN without credentials, or with retries that are no number, is refused at once. */
    public function testBadDsn(): void
    {
        $this->expectException(InvalidArgumentException::class);
        $this->expectExceptionMessage('MAIL_APPLIANCE_TOKEN');
        (new MailApplianceTransportFactory())->create(Dsn::fromString('mail-appliance://mail.example.com'));
    }

    /** A scheme of another transport is refused. */
    public function testOtherScheme(): void
    {
        $this->expectException(UnsupportedSchemeException::class);
        (new MailApplianceTransportFactory())->create(Dsn::fromString('smtp://x@y'));
    }
}
