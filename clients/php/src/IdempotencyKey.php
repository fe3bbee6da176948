<?php

declare(strict_types=1);

namespace MailAppliance;

/** @internal */
final class IdempotencyKey
{
    private function __construct()
    {
    }

    /** The caller's key as it is; without one a new key. */
    public static function of(?string $given): string
    {
        if ($given === null) {
            return 'auto_' . self::uuid4();
        }
        if (!preg_match('/^[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?$/D', $given)) {
            throw new ConfigurationError('the idempotency key must have 1 to 255 printable ASCII characters, without a space at either end', $given);
        }

        return $given;
    }

    private static function uuid4(): string
    {
        $bytes = random_bytes(16);
        $bytes[6] = \chr(\ord($bytes[6]) & 0x0f | 0x40); // RFC 9562 5.4: version
        $bytes[8] = \chr(\ord($bytes[8]) & 0x3f | 0x80); // and variant

        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
    }
}
