<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\Client;
use MailAppliance\Laravel\MailApplianceServiceProvider;
use MailAppliance\Symfony\MailApplianceTransport;
use MailAppliance\Symfony\MailApplianceTransportFactory;
use MailAppliance\Testing\FakeClient;
use MailAppliance\Webhook;
use PHPUnit\Framework\TestCase;
use Symfony\Component\Mailer\Mailer;
use Symfony\Component\Mailer\Transport\Dsn;

/** Runs every code block of the README. */
final class ReadmeTest extends TestCase
{
    /** The blocks by heading and language, in order: none may be added without a test. */
    private const BLOCKS = [
        'Install' => ['sh'],
        'First send' => ['php', 'php'],
        'Delivery status' => ['php'],
        'Batch' => ['php'],
        'Scheduling and metadata' => ['php'],
        'Many at the same time' => ['php'],
        'Errors' => ['php'],
        'Webhooks' => ['php', 'php'],
        'Symfony' => ['dotenv', 'php'],
        'Laravel' => ['dotenv'],
        'Tests' => ['php', 'php'],
    ];

    /** @return array<string, list<array{string, string}>> language and text of the blocks by heading */
    private static function blocks(): array
    {
        $blocks = [];
        foreach (\array_slice(explode("\n## ", file_get_contents(__DIR__ . '/../README.md')), 1) as $section) {
            preg_match_all('/^```(\w+)\n(.*?)^```$/ms', $section, $found, \PREG_SET_ORDER);
            foreach ($found as [, $language, $text]) {
                $blocks[strstr($section, "\n", true)][] = [$language, $text];
            }
        }

        return $blocks;
    }

    /** What a PHP block prints, run with these variables. */
    private static function output(string $heading, int $number = 0, array $variables = []): string
    {
        $code = self::blocks()[$heading][$number][1];
        ob_start();
        try {
            (static function () use ($code, $variables): void {
                extract($variables);
                eval($code);
            })();
        } finally {
            $output = ob_get_clean();
        }

        return $output;
    }

    /** All blocks are known here. */
    public function testBlocks(): void
    {
        self::assertSame(self::BLOCKS, array_map(static fn (array $blocks): array => array_column($blocks, 0), self::blocks()));
        self::assertSame(2 * array_sum(array_map('count', self::BLOCKS)), substr_count(file_get_contents(__DIR__ . '/../README.md'), '```'));
    }

    public function testFirstSend(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        putenv("MAIL_APPLIANCE_URL={$server->url}");
        putenv('MAIL_APPLIANCE_TOKEN=tok');
        try {
            self::assertSame("msg_1: queued\n", self::output('First send'));
        } finally {
            putenv('MAIL_APPLIANCE_URL');
            putenv('MAIL_APPLIANCE_TOKEN');
        }
        [$request] = $server->seen(1);
        self::assertSame(['order.txt', 'MSBlbmdpbmU='], array_values(json_decode($request['body'], true)['attachments'][0]));
        self::assertSame('', self::output('First send', 1));
    }

    public function testDeliveryStatus(): void
    {
        $mail = new FakeClient();
        $sent = $mail->send(['from' => 'a@example.com', 'to' => 'bounce@example.net', 'subject' => 'Hello', 'text' => 'Hi']);
        self::output('Delivery status');
        $this->expectOutputString("bounce@example.net: bounced\n");
        \printResults($mail, $sent->id);
    }

    /** The commands install the library from a checkout next to a project, without the network. */
    public function testInstall(): void
    {
        if (trim((string) shell_exec('command -v composer')) === '') {
            self::markTestSkipped('needs composer');
        }
        $folder = sys_get_temp_dir() . '/' . uniqid('composer', true);
        mkdir("{$folder}/mail-appliance/clients", recursive: true);
        mkdir("{$folder}/project");
        symlink(\dirname(__DIR__), "{$folder}/mail-appliance/clients/php");
        file_put_contents("{$folder}/project/composer.json", '{"repositories": {"packagist.org": false}}');
        $script = self::blocks()['Install'][0][1] . "php -r 'require \"vendor/autoload.php\"; echo MailAppliance\\Client::VERSION;'";
        $variables = ['COMPOSER_HOME' => $folder, 'COMPOSER_DISABLE_NETWORK' => '1', 'COMPOSER_ALLOW_SUPERUSER' => '1', 'COMPOSER_NO_INTERACTION' => '1'];
        $process = proc_open(['sh', '-ec', $script], [1 => ['pipe', 'w'], 2 => ['file', "{$folder}/errors", 'w']], $pipes, "{$folder}/project", $variables + getenv());
        $output = stream_get_contents($pipes[1]);
        self::assertSame(0, proc_close($process), file_get_contents("{$folder}/errors"));
        self::assertStringEndsWith(Client::VERSION, $output);
        shell_exec('rm -rf ' . escapeshellarg($folder));
    }

    public function testBatch(): void
    {
        $mail = new FakeClient();
        self::assertSame("0: msg_fake1\n1: msg_fake2\n", self::output('Batch', 0, ['mail' => $mail]));
        self::assertSame(['news-17', 'news-17'], array_column($mail->sent(), 'idempotencyKey'));
    }

    public function testScheduling(): void
    {
        $mail = new FakeClient();
        self::assertSame('', self::output('Scheduling and metadata', 0, ['mail' => $mail]));
        $message = $mail->get('msg_fake1');
        self::assertSame(['failed', ['customer' => '17']], [$message->status, $message->metadata]);
        self::assertEqualsWithDelta(time() + 26 * 3600, $message->scheduledAt->getTimestamp(), 60);
        $server = new LoopbackServer([LoopbackServer::accepted(), LoopbackServer::accepted(), LoopbackServer::error(409, 'conflict')]);
        self::assertSame("already sent\n", self::output('Scheduling and metadata', 0, ['mail' => Client::token($server->url, 't')]));
    }

    public function testMany(): void
    {
        $server = new LoopbackServer([LoopbackServer::accepted()]);
        self::assertSame("0: msg_1\n1: msg_1\n", self::output('Many at the same time', 0, ['mail' => Client::token($server->url, 't')]));
    }

    public function testErrors(): void
    {
        $server = new LoopbackServer([LoopbackServer::error(402, 'insufficient_credits'), LoopbackServer::error(500, 'internal_error')]);
        $variables = ['mail' => Client::token($server->url, 't')];
        self::assertSame("buy credits: the insufficient_credits error (402 insufficient_credits, req_9)\n", self::output('Errors', 0, $variables));
        self::assertSame("try again later with the key order-18: the internal_error error\n", self::output('Errors', 0, $variables));
    }

    public function testFake(): void
    {
        self::assertSame('', self::output('Tests'));
        self::assertSame(4, self::getCount());
    }

    public function testSignUp(): void
    {
        if (getenv('APPLIANCE_COMMAND') === false) {
            self::markTestSkipped('APPLIANCE_COMMAND is not set');
        }
        self::assertSame('', self::output('Tests', 1));
    }

    /** The webhook block is the whole script of a web server. */
    public function testReceivedMessage(): void
    {
        self::output('Webhooks', 1); // defines the function
        $log = tempnam(sys_get_temp_dir(), 'log');
        $before = ini_set('error_log', $log);
        try {
            foreach (['', ',"auto_submitted":true'] as $more) {
                $data = '{"from":"ada@example.net","dmarc":"pass","subject":"Hi","in_reply_to_email":{"id":"msg_1","metadata":{"ticket":"7"}}' . $more . '}';
                $body = '{"id":"evt_1","type":"email.received","data":' . $data . '}';
                $header = 't=1,v1=' . hash_hmac('sha256', "1.{$body}", 'whsec_x');
                \fileTicket(Webhook::verify($body, $header, 'whsec_x', now: 1));
            }
            self::assertSame(1, substr_count(file_get_contents($log), '7: ada@example.net (pass) Hi, 0 files'));
        } finally {
            ini_set('error_log', (string) $before);
            unlink($log);
        }
    }

    public function testWebhooks(): void
    {
        $script = tempnam(sys_get_temp_dir(), 'hook');
        $log = tempnam(sys_get_temp_dir(), 'hook');
        file_put_contents($script, '<?php require ' . var_export(__DIR__ . '/autoload.php', true) . ';' . self::blocks()['Webhooks'][0][1]);
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        $address = stream_socket_get_name($listener, false);
        fclose($listener);
        $process = proc_open([\PHP_BINARY, '-d', 'error_reporting=-1', '-d', 'display_errors=0', '-S', $address, $script], [['file', '/dev/null', 'r'], ['file', '/dev/null', 'w'], ['file', $log, 'w']], $pipes, null, ['WEBHOOK_SECRET' => 'whsec_x'] + getenv());
        try {
            $body = '{"id":"evt_1","type":"email.bounced","data":{"to":"b@example.net","smtp_response":"550 no"}}';
            $time = time();
            $signature = "t={$time},v1=" . hash_hmac('sha256', "{$time}.{$body}", 'whsec_x');
            self::assertSame(200, self::post("http://{$address}/", $body, $signature));
            self::assertSame(400, self::post("http://{$address}/", "{$body} ", $signature));
            self::assertStringContainsString('b@example.net bounced: 550 no', file_get_contents($log));
        } finally {
            proc_terminate($process, \SIGKILL);
            proc_close($process);
            unlink($script);
            unlink($log);
        }
    }

    private static function post(string $url, string $body, string $signature): int
    {
        for ($end = microtime(true) + 20; microtime(true) < $end; usleep(20_000)) {
            $curl = curl_init($url);
            curl_setopt_array($curl, [\CURLOPT_POSTFIELDS => $body, \CURLOPT_HTTPHEADER => ["Service-Signature: {$signature}"], \CURLOPT_RETURNTRANSFER => true, \CURLOPT_TIMEOUT => 20]);
            if (curl_exec($curl) !== false) {
                return curl_getinfo($curl, \CURLINFO_RESPONSE_CODE);
            }
        }
        self::fail('the web server did not start');
    }

    public function testSymfony(): void
    {
        if (!class_exists(Mailer::class)) {
            self::markTestSkipped('needs php-symfony-mailer');
        }
        [$name, $dsn] = explode('=', trim(self::blocks()['Symfony'][0][1]), 2);
        self::assertSame('MAILER_DSN', $name);
        self::assertInstanceOf(MailApplianceTransport::class, (new MailApplianceTransportFactory())->create(Dsn::fromString($dsn)));
        $fake = new FakeClient();
        self::output('Symfony', 1, ['mailer' => new Mailer(new MailApplianceTransport($fake))]);
        self::assertSame('order-17', $fake->sent()[0]['idempotencyKey']);
        self::assertSame(['customer' => '17'], $fake->sent()[0]['email']['metadata']);
    }

    /** The variables of the Laravel block are those that the provider's configuration and Laravel read. */
    public function testLaravel(): void
    {
        if (!class_exists(\Dotenv\Dotenv::class) || !\function_exists('env')) {
            self::markTestSkipped('needs php-illuminate-mail and php-vlucas-phpdotenv');
        }
        $variables = \Dotenv\Dotenv::parse(self::blocks()['Laravel'][0][1]);
        foreach ($variables as $name => $value) {
            putenv("{$name}={$value}");
        }
        try {
            $config = require __DIR__ . '/../config/mail-appliance.php';
        } finally {
            array_map(static fn (string $name) => putenv($name), array_keys($variables));
        }
        self::assertSame(['https://mail.example.com', 'ma_live_0123'], [$config['url'], $config['token']]);
        self::assertSame('mail-appliance', $variables['MAIL_MAILER']);
        $composer = json_decode(file_get_contents(__DIR__ . '/../composer.json'), true);
        self::assertSame([MailApplianceServiceProvider::class], $composer['extra']['laravel']['providers']);
    }
}
