<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\ConfigurationError;
use MailAppliance\Settings;
use PHPUnit\Framework\TestCase;

final class SettingsTest extends TestCase
{
    private const URL = 'https://mail.example.com';

    private static function resolve(array $given, array $environment = []): Settings
    {
        $given += ['url' => null, 'username' => null, 'password' => null, 'token' => null];

        return Settings::resolve(...$given, environment: static fn (string $name): ?string => $environment[$name] ?? null);
    }

    /**
     * Given credentials win over all of the environment's, and there a token wins over a pair.
     *
     * @dataProvider credentials
     */
    public function testCredentials(string $authorization, array $given, array $environment = []): void
    {
        self::assertSame($authorization, self::resolve($given + ['url' => self::URL], $environment)->authorization);
    }

    public static function credentials(): iterable
    {
        $all = ['MAIL_APPLIANCE_USERNAME' => 'env', 'MAIL_APPLIANCE_PASSWORD' => 'env', 'MAIL_APPLIANCE_TOKEN' => 'envtoken'];
        $pair = array_slice($all, 0, 2);
        yield ['Basic ' . base64_encode('u:p'), ['username' => 'u', 'password' => 'p']];
        yield ['Basic ' . base64_encode('u:p:ä'), ['username' => 'u', 'password' => 'p:ä']];
        yield ['Bearer t', ['token' => 't']];
        yield ['Basic ' . base64_encode('u:p'), ['username' => 'u', 'password' => 'p'], $all];
        yield ['Bearer t', ['token' => 't'], $all];
        yield ['Bearer envtoken', [], $all];
        yield ['Bearer envtoken', ['token' => '', 'username' => '', 'password' => ''], $all];
        yield ['Basic ' . base64_encode('env:env'), [], $pair];
        yield ['Basic ' . base64_encode('env:env'), [], ['MAIL_APPLIANCE_TOKEN' => ''] + $pair];
        yield ['Basic ' . base64_encode('u:env'), ['username' => 'u'], $all];
    }

    /**
     * What is missing or given twice is named, with its variable.
     *
     * @dataProvider mistakes
     */
    public function testMistake(string $named, array $given, array $environment = []): void
    {
        $this->expectException(ConfigurationError::class);
        $this->expectExceptionMessageMatches("/{$named}/");
        self::resolve($given + ['url' => self::URL], $environment);
    }

    public static function mistakes(): iterable
    {
        yield ['url.*MAIL_APPLIANCE_URL', ['url' => null, 'token' => 't']];
        yield ['MAIL_APPLIANCE_TOKEN.*MAIL_APPLIANCE_USERNAME.*MAIL_APPLIANCE_PASSWORD', []];
        yield ['password.*MAIL_APPLIANCE_PASSWORD', ['username' => 'u']];
        yield ['username.*MAIL_APPLIANCE_USERNAME', ['password' => 'p'], ['MAIL_APPLIANCE_TOKEN' => 't']];
        yield ['username.*MAIL_APPLIANCE_USERNAME', [], ['MAIL_APPLIANCE_PASSWORD' => 'p']];
        yield ['both a token.*MAIL_APPLIANCE_TOKEN.*MAIL_APPLIANCE_USERNAME', ['username' => 'u', 'password' => 'p', 'token' => 't']];
        yield ['both a token', ['username' => 'u', 'token' => 't']];
        yield ['colon', ['username' => 'u:v', 'password' => 'p']];
        yield ['token', ['token' => "t\r\nX-Other: 1"]];
        foreach (['mail.example.com', '//mail.example.com', 'ftp://mail.example.com', 'https://', 'https:///x', "https://a b", "https://a\n", 'https://[', 'https://a:99999'] as $url) {
            yield [' is not http', ['url' => $url, 'token' => 't']];
        }
        foreach (['https://u@a', 'https://u:p@a', 'https://a?', 'https://a/?x=1', 'https://a/#', 'https://a#f'] as $url) {
            yield ['must not have', ['url' => $url, 'token' => 't']];
        }
    }

    /** A password that was written into the URL is not repeated in the error. */
    public function testSecretInUrl(): void
    {
        try {
            self::resolve(['url' => 'https://user:hunter2@mail.example.com', 'token' => 't']);
            self::fail('accepted');
        } catch (ConfigurationError $error) {
            self::assertStringNotContainsString('hunter2', $error->getMessage());
        }
    }

    /** Trailing slashes are dropped, a path is kept. */
    public function testUrl(): void
    {
        self::assertSame(self::URL, self::resolve(['url' => self::URL . '//', 'token' => 't'])->url);
        self::assertSame('http://[::1]:8080/mail', self::resolve(['url' => 'http://[::1]:8080/mail/', 'token' => 't'])->url);
        self::assertSame('HTTPS://env', self::resolve(['url' => '', 'token' => 't'], ['MAIL_APPLIANCE_URL' => 'HTTPS://env/'])->url);
    }
}
