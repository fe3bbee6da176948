<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * The bodies of requests, made from the arrays that the caller gives.
 *
 * @internal
 */
final class Payload
{
    private const LISTS = ['to', 'cc', 'bcc', 'tags', 'attachments'];
    private const OBJECTS = ['headers', 'variables', 'metadata'];

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
        return self::json(self::fields($email));
    }

    /**
     * @param iterable<array<string, mixed>> $emails
     *
     * @throws ConfigurationError
     */
    public static function encodeBatch(iterable $emails, ?string $onError): string
    {
        $encoded = [];
        foreach ($emails as $email) {
            try {
                $encoded[] = self::fields($email);
            } catch (ConfigurationError $error) {
                throw new ConfigurationError('emails[' . \count($encoded) . "]: {$error->getMessage()}", previous: $error);
            }
        }

        return self::json((object) (['emails' => $encoded] + ($onError === null ? [] : ['on_error' => $onError])));
    }

    /** @param array<string, mixed> $email */
    private static function fields(array $email): object
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
        if (($fields['scheduled_at'] ?? null) instanceof \DateTimeInterface) {
            $fields['scheduled_at'] = $fields['scheduled_at']->format(\DATE_RFC3339);
        }

        return (object) $fields;
    }

    private static function json(object $fields): string
    {
        try {
            return json_encode($fields, JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION);
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
