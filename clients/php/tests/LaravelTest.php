<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use Dotenv\Repository\RepositoryBuilder;
use Illuminate\Config\Repository;
use Illuminate\Container\Container;
use Illuminate\Events\Dispatcher;
use Illuminate\Filesystem\Filesystem;
use Illuminate\Mail\MailManager;
use Illuminate\Mail\Message;
use Illuminate\Support\HtmlString;
use Illuminate\View\Engines\EngineResolver;
use Illuminate\View\Engines\PhpEngine;
use Illuminate\View\Factory;
use Illuminate\View\FileViewFinder;
use MailAppliance\Client;
use MailAppliance\InsufficientCredits;
use MailAppliance\Laravel\MailApplianceServiceProvider;
use MailAppliance\Mailer;
use MailAppliance\Testing\FakeClient;
use PHPUnit\Framework\TestCase;

/** The provider in a real Illuminate container, under the real mail manager: SwiftMailer's of Laravel 8, or Symfony's since 9. */
final class LaravelTest extends TestCase
{
    private FakeClient $fake;

    protected function setUp(): void
    {
        foreach ([MailManager::class, Repository::class, Dispatcher::class, Factory::class, RepositoryBuilder::class] as $class) {
            if (!class_exists($class)) {
                self::markTestSkipped('needs php-illuminate-mail, -config, -events, -view and php-vlucas-phpdotenv');
            }
        }
        $this->fake = new FakeClient();
    }

    /** An application with the provider, as package discovery makes it. */
    private static function application(array $config = []): Container
    {
        $app = new Container();
        $app->instance('config', new Repository($config + ['mail' => ['default' => 'mail-appliance', 'from' => ['address' => 'app@example.com', 'name' => 'The Äpp']]]));
        $app->instance('events', $events = new Dispatcher($app));
        $engines = new EngineResolver();
        $engines->register('php', static fn (): PhpEngine => new PhpEngine(new Filesystem()));
        $app->instance('view', new Factory($engines, new FileViewFinder(new Filesystem(), [__DIR__ . '/views']), $events));
        $app->singleton('mail.manager', static fn (Container $app): MailManager => new MailManager($app));
        $provider = new MailApplianceServiceProvider($app);
        $provider->register();
        $provider->boot();

        return $app;
    }

    /** What the client was given for a message. */
    private function sent(callable $build, string|array $view = ['raw' => 'tëxt']): array
    {
        $app = self::application();
        $app->instance(Mailer::class, $this->fake);
        $app->make('mail.manager')->mailer()->send($view, [], $build);
        self::assertCount(1, $this->fake->sent());

        return $this->fake->sent()[0]['email'];
    }

    /** The settings of the environment make MAIL_MAILER=mail-appliance work, and the client is there for injection. */
    public function testEnvironment(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        putenv("MAIL_APPLIANCE_URL={$server->url}");
        putenv('MAIL_APPLIANCE_TOKEN=tok');
        try {
            $app = self::application();
        } finally {
            putenv('MAIL_APPLIANCE_URL');
            putenv('MAIL_APPLIANCE_TOKEN');
        }
        $app->make('mail.manager')->mailer()->raw('tëxt', static fn (Message $message) => $message->to('b@example.net')->subject('s'));
        [$request] = $server->seen(1);
        self::assertSame('Bearer tok', $request['headers']['authorization']);
        self::assertEquals(['from' => '"The Äpp" <app@example.com>', 'to' => ['b@example.net'], 'subject' => 's', 'text' => 'tëxt'], json_decode($request['body'], true));
        self::assertInstanceOf(Client::class, $app->make(Mailer::class));
        self::assertSame($app->make(Mailer::class), $app->make(Mailer::class));
    }

    /** A mailer with settings of its own has its own client. */
    public function testOwnSettings(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        $own = ['transport' => 'mail-appliance', 'client' => ['url' => "{$server->url}/x", 'username' => 'u', 'password' => 'p', 'retries' => 0, 'timeout' => 20]];
        $app = self::application(['mail' => ['default' => 'own', 'from' => ['address' => 'app@example.com', 'name' => ''], 'mailers' => ['own' => $own]]]);
        $app->make('mail.manager')->mailer()->raw('t', static fn (Message $message) => $message->to('b@example.net')->subject('s'));
        [$request] = $server->seen(1);
        self::assertSame(['/x/emails', 'Basic dTpw'], [$request['path'], $request['headers']['authorization']]);
    }

    /** Everything that JSON can carry arrives, and the Idempotency-Key header is the key and no header. */
    public function testWholeMessage(): void
    {
        $sent = $this->sent(static function (Message $message): void {
            $message->to('b@example.net', 'B')->cc('c@example.net')->bcc('d@example.net')->replyTo('r@example.com')->subject('Grüße 🎉')->priority(1)
                ->attachData("\0\xff", 'ä.bin', ['mime' => 'application/x-thing']);
            $message->getHeaders()->addTextHeader('Idempotency-Key', 'order-17');
            $message->getHeaders()->addTextHeader('X-Order', 'Nr. ü');
            $message->getHeaders()->addTextHeader('X-Service-Tag', 'one, two');
        }, ['html' => new HtmlString('<p>ü'), 'raw' => 'tëxt']);
        self::assertSame('order-17', $this->fake->sent()[0]['idempotencyKey']);
        [$attachment] = $sent['attachments'];
        self::assertSame(['ä.bin', "\0\xff", 'application/x-thing', null], [$attachment->filename, $attachment->bytes, $attachment->contentType, $attachment->contentId]);
        unset($sent['attachments']);
        self::assertEquals([
            'from' => '"The Äpp" <app@example.com>',
            'to' => ['"B" <b@example.net>'],
            'cc' => ['c@example.net'],
            'bcc' => ['d@example.net'],
            'reply_to' => 'r@example.com',
            'subject' => 'Grüße 🎉',
            'html' => '<p>ü',
            'text' => 'tëxt',
            'headers' => ['X-Priority' => '1 (Highest)', 'X-Order' => 'Nr. ü'],
            'tags' => ['one', 'two'],
        ], $sent);
    }

    /** An image that a view embeds is referred to by its content id. */
    public function testEmbedded(): void
    {
        $sent = $this->sent(static fn (Message $message) => $message->to('b@example.net')->subject('s'), 'logo');
        [$logo] = $sent['attachments'];
        self::assertSame(["\x89PNG", 'image/png', 'logo.png'], [$logo->bytes, $logo->contentType, $logo->filename]);
        self::assertSame('<img src="cid:inline1@mail-appliance">', trim($sent['html']));
        self::assertSame('inline1@mail-appliance', $logo->contentId);
    }

    /**
     * What JSON cannot carry is refused and named, and nothing is sent.
     *
     * @dataProvider refused
     */
    public function testRefused(string $named, callable $build): void
    {
        $app = self::application();
        $app->instance(Mailer::class, $this->fake);
        try {
            $app->make('mail.manager')->mailer()->raw('t', static function (Message $message) use ($build): void {
                $build($message->to('b@example.net')->subject('s'));
            });
            self::fail('sent');
        } catch (\Swift_TransportException | \Symfony\Component\Mailer\Exception\TransportException $exception) {
            self::assertStringContainsString($named, $exception->getMessage());
        }
        self::assertSame([], $this->fake->sent());
    }

    public static function refused(): iterable
    {
        yield ['Return-Path', static fn (Message $message) => $message->returnPath('bounce@example.com')];
        yield ['Sender x@example.com', static fn (Message $message) => $message->sender('x@example.com')];
        yield ['more than one From', static fn (Message $message) => $message->addFrom('a2@example.com')];
        yield ['more than one Reply-To', static fn (Message $message) => $message->replyTo(['x@example.com', 'y@example.com'])];
        yield ['header X-Twice more than once', static fn (Message $message) => [$message->getHeaders()->addTextHeader('X-Twice', '1'), $message->getHeaders()->addTextHeader('X-Twice', '2')]];
        yield ['DKIM-Signature', static fn (Message $message) => $message->getHeaders()->addTextHeader('DKIM-Signature', 'v=1')];
        yield ['idempotency key', static fn (Message $message) => $message->getHeaders()->addTextHeader('Idempotency-Key', 'ä')];
    }

    /** SwiftMailer's other parts are judged by the same rules. */
    public function testSwiftParts(): void
    {
        if (method_exists(MailManager::class, 'createSymfonyTransport')) {
            self::assertFalse(class_exists(\Swift_Message::class, false));

            return;
        }
        $sent = $this->sent(static fn (Message $message) => $message->to('b@example.net')->subject('s')->setCharset('iso-8859-1'), ['raw' => "gr\xfc\xdfe"]);
        self::assertSame('grüße', $sent['text']);
        $parts = [
            'text/calendar' => new \Swift_MimePart('BEGIN', 'text/calendar'),
            'more than one text/plain' => new \Swift_MimePart('two', 'text/plain'),
            'application/x-y' => new \Swift_MimePart('x', 'application/x-y'),
            'Content-Description' => (new \Swift_Attachment('x', 'x.txt'))->setDescription('d'),
        ];
        foreach ($parts as $named => $part) {
            try {
                $this->sent(static fn (Message $message) => $message->to('b@example.net')->subject('s')->getSwiftMessage()->attach($part));
                self::fail('sent');
            } catch (\Swift_TransportException $exception) {
                self::assertStringContainsString($named, $exception->getMessage());
            }
        }
    }

    /** An error of the appliance is the framework's transport exception, with the error behind it. */
    public function testError(): void
    {
        $this->fake->failWith(new InsufficientCredits('no credits', 402, 'insufficient_credits'));
        try {
            $this->sent(static fn (Message $message) => $message->to('b@example.net')->subject('s'));
            self::fail('sent');
        } catch (\Swift_TransportException | \Symfony\Component\Mailer\Exception\TransportException $exception) {
            self::assertInstanceOf(InsufficientCredits::class, $exception->getPrevious());
        }
    }
}
