<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * Where the appliance is and how to authenticate: what the caller gave, completed from the environment.
 * An empty string is the same as absent.
 *
 * @internal
 */
final class Settings
{
    private function __construct(public readonly string $url, public readonly string $authorization)
    {
    }

    /** @param callable(string): ?string $environment reads a variable */
    public static function resolve(
        ?string $url,
        ?string $username,
        #[\SensitiveParameter] ?string $password,
        #[\SensitiveParameter] ?string $token,
        callable $environment,
    ): self {
        $variable = static fn (string $name): string => $environment($name) ?? '';
        [$url, $username, $password, $token] = [$url ?? '', $username ?? '', $password ?? '', $token ?? ''];
        if ($token !== '' && $username . $password !== '') {
            throw new ConfigurationError('both a token (MAIL_APPLIANCE_TOKEN) and a username and password (MAIL_APPLIANCE_USERNAME, MAIL_APPLIANCE_PASSWORD) are given: give one of them');
        }
        if ($token . $username . $password === '') {
            $token = $variable('MAIL_APPLIANCE_TOKEN');
        }
        if ($token === '') {
            $username = $username !== '' ? $username : $variable('MAIL_APPLIANCE_USERNAME');
            $password = $password !== '' ? $password : $variable('MAIL_APPLIANCE_PASSWORD');
        }

        return new self(
            self::checkedUrl($url !== '' ? $url : $variable('MAIL_APPLIANCE_URL')),
            $token !== '' ? self::bearer($token) : self::basic($username, $password),
        );
    }

    private static function checkedUrl(string $url): string
    {
        if ($url === '') {
            throw new ConfigurationError('the URL of the appliance is missing: give url or set MAIL_APPLIANCE_URL');
        }
        $parts = preg_match('/[\x00-\x20\x7f]/', $url) ? false : parse_url($url);
        // The URL itself is not in the messages: it may have a password in it.
        if ($parts === false || !preg_match('/^https?$/Di', $parts['scheme'] ?? '') || !preg_match('/^(\[[0-9a-f:.]+\]|[^\[\]]+)$/Di', $parts['host'] ?? '')) {
            throw new ConfigurationError('the URL of the appliance (url, MAIL_APPLIANCE_URL) is not http:// or https:// and a host');
        }
        foreach (['user', 'pass', 'query', 'fragment'] as $part) {
            if (isset($parts[$part])) {
                throw new ConfigurationError('the URL of the appliance (url, MAIL_APPLIANCE_URL) must not have a user, a password, a query or a fragment');
            }
        }

        return rtrim($url, '/');
    }

    private static function bearer(#[\SensitiveParameter] string $token): string
    {
        if (!preg_match('/^[\x21-\x7e]+$/D', $token)) {
            throw new ConfigurationError('the token (token, MAIL_APPLIANCE_TOKEN) has characters that no token has');
        }

        return "Bearer {$token}";
    }

    private static function basic(string $username, #[\SensitiveParameter] string $password): string
    {
        if ($username === '' && $password === '') {
            throw new ConfigurationError('the credentials are missing: give token, or username and password, or set MAIL_APPLIANCE_TOKEN, or MAIL_APPLIANCE_USERNAME and MAIL_APPLIANCE_PASSWORD');
        }
        if ($username === '') {
            throw new ConfigurationError('the username is missing: give username or set MAIL_APPLIANCE_USERNAME');
        }
        if ($password === '') {
            throw new ConfigurationError('the password is missing: give password or set MAIL_APPLIANCE_PASSWORD');
        }
        if (str_contains($username, ':')) { // RFC 7617 2
            throw new ConfigurationError('the username (username, MAIL_APPLIANCE_USERNAME) must not have a colon');
        }

        return 'Basic ' . base64_encode("{$username}:{$password}");
    }
}
