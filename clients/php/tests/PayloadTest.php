<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\Attachment;
use MailAppliance\ConfigurationError;
use MailAppliance\IdempotencyKey;
use MailAppliance\Payload;
use PHPUnit\Framework\TestCase;

/** What a send request has in it: the body, its attachments, and the idempotency key. */
final class PayloadTest extends TestCase
{
    /** Fields keep their JSON type whatever PHP arrays look like: lists stay lists, maps stay objects, null is left out. */
    public function testTypes(): void
    {
        self::assertSame(
            '{"from":"Ä/b <a@example.com>","to":["x","y"],"headers":{},"variables":{"0":"zero","n":1.0},"tags":["t"],"attachments":[]}',
            Payload::encode([
                'from' => 'Ä/b <a@example.com>',
                'to' => [1 => 'x', 5 => 'y'],
                'cc' => null,
                'headers' => [],
                'variables' => ['0' => 'zero', 'n' => 1.0],
                'tags' => ['a' => 't'],
                'attachments' => [],
            ]),
        );
        self::assertSame('{}', Payload::encode([]));
    }

    /** An attachment is base64 by the library, from bytes, a path or a stream that stands anywhere. */
    public function testAttachments(): void
    {
        $path = tempnam(sys_get_temp_dir(), 'ä');
        try {
            file_put_contents($path, "\0\xffbytes");
            $stream = fopen($path, 'rb');
            fread($stream, 2);
            $attachments = [
                Attachment::fromBytes("\0\xff", 'a.bin', contentId: 'logo'),
                Attachment::fromPath($path),
                Attachment::fromPath($path, 'b.txt', 'text/plain'),
                Attachment::fromStream($stream, 'c.txt'),
            ];
            self::assertIsResource($stream);
        } finally {
            unlink($path);
        }
        self::assertSame([
            ['filename' => 'a.bin', 'content' => 'AP8=', 'content_id' => 'logo'],
            ['filename' => basename($path), 'content' => base64_encode("\0\xffbytes")],
            ['filename' => 'b.txt', 'content' => base64_encode("\0\xffbytes"), 'content_type' => 'text/plain'],
            ['filename' => 'c.txt', 'content' => base64_encode('bytes')],
        ], json_decode(Payload::encode(['attachments' => $attachments]), true)['attachments']);
    }

    /**
     * A mistake is found before any request.
     *
     * @dataProvider mistakes
     */
    public function testMistake(string $message, callable $make): void
    {
        $this->expectException(ConfigurationError::class);
        $this->expectExceptionMessage($message);
        $make();
    }

    public static function mistakes(): iterable
    {
        yield ['/no/such/file cannot be read', static fn () => Attachment::fromPath('/no/such/file')];
        yield ['cannot be read', static fn () => Attachment::fromPath(__DIR__)];
        yield ['no file name', static fn () => Attachment::fromBytes('', '')];
        yield ['not an open stream', static fn () => Attachment::fromStream('text', 'a.txt')];
        yield ['cannot be read from its stream', static fn () => Attachment::fromStream(fopen('php://stdout', 'wb'), 'a.txt')];
        yield ['cannot be written as JSON: Malformed UTF-8', static fn () => Payload::encode(['text' => "\xff"])];
        yield ['every attachment must be', static fn () => Payload::encode(['attachments' => [['filename' => 'a', 'content' => 'b']]])];
        yield ['attachments is not a list', static fn () => Payload::encode(['attachments' => 'a.txt'])];
        foreach (['', ' a', 'a ', "a\n", 'ä', "a\x7f", str_repeat('a', 256)] as $key) {
            yield ['1 to 255 printable ASCII', static fn () => IdempotencyKey::of($key)];
        }
    }

    /** A given key stays as it is; without one there is a new UUIDv4 each time. */
    public function testIdempotencyKey(): void
    {
        foreach (['a', '~', 'a b', str_repeat('a', 255)] as $key) {
            self::assertSame($key, IdempotencyKey::of($key));
        }
        $made = array_map(static fn () => IdempotencyKey::of(null), range(1, 50));
        self::assertCount(50, array_unique($made));
        foreach ($made as $key) {
            self::assertMatchesRegularExpression('/^auto_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/', $key);
        }
    }
}
