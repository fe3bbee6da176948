<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * The body of a send request, made from the array that the caller gives.
 *
 * @internal
 */
final class Payload
{
    private const LISTS = ['to', 'cc', 'bcc', 'tags', 'attachments'];
    private const OBJECTS = ['headers', 'variables'];

    private function __construct()
    {
    }

    /**
     * @param array<string, mixed> $email
     *
     * @throws ConfigurationError
     */
    public static function encode(array $email): string
    {
        $fields = array_filter($email, static fn (mixed $value): bool => $value !== null);
        foreach ($fields as $name => $value) {
            if (\is_array($value)) {
                $fields[$name] = match (true) {
                    // An array with gaps, as array_filter() leaves them, would become an object; an empty map would become a list.
                    \in_array($name, self::LISTS, true) => array_values($value),
                    \in_array($name, self::OBJECTS, true) => (object) $value,
                    default => $value,
                };
            }
        }
        if (isset($fields['attachments'])) {
            $fields['attachments'] = self::attachments($fields['attachments']);
        }
        try {
            return json_encode((object) $fields, JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION);
        } catch (\JsonException $exception) {
            throw new ConfigurationError("the email cannot be written as JSON: {$exception->getMessage()}", previous: $exception);
        }
    }

    /** @return list<array<string, string>> */
    private static function attachments(mixed $attachments): array
    {
        if (!\is_array($attachments)) {
            throw new ConfigurationError('attachments is not a list');
        }

        return array_map(static fn (mixed $attachment): array => $attachment instanceof Attachment
            ? $attachment->toArray()
            : throw new ConfigurationError('every attachment must be a MailAppliance\Attachment: see fromBytes, fromPath and fromStream'), $attachments);
    }
}
