<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * An email that the appliance received. Trust `$from` only if `$dmarc` is `pass`. Do not answer one that is
 * `$autoSubmitted`: two programs that answer each other never stop.
 */
final class ReceivedEmail
{
    /**
     * @param ?string                               $envelopeFrom    MAIL FROM; empty for a bounce
     * @param list<string>                          $envelopeTo      the receiving addresses of the account
     * @param list<string>                          $to
     * @param list<string>                          $cc
     * @param list<string>                          $replyTo
     * @param list<array{name: string, value: string}> $headers
     * @param ?string                               $answeredId       id of your message that it answers
     * @param ?array<string, string>                $answeredMetadata metadata of that message
     * @param list<ReceivedFile>                    $attachments
     * @param ?string                               $rawUrl          link to the whole message, valid for an hour
     * @param bool                                  $truncated       whether a body was cut
     */
    public function __construct(
        public readonly ?string $inboundId,
        public readonly ?string $envelopeFrom,
        public readonly array $envelopeTo,
        public readonly ?string $from,
        public readonly array $to,
        public readonly array $cc,
        public readonly array $replyTo,
        public readonly ?string $subject,
        public readonly ?string $text,
        public readonly ?string $html,
        public readonly array $headers,
        public readonly ?string $messageId,
        public readonly ?string $inReplyTo,
        public readonly ?string $answeredId,
        public readonly ?array $answeredMetadata,
        public readonly array $attachments,
        public readonly ?string $spf,
        public readonly ?string $dkim,
        public readonly ?string $dmarc,
        public readonly ?int $size,
        public readonly ?string $rawUrl,
        public readonly bool $truncated,
        public readonly bool $autoSubmitted,
    ) {
    }

    /** @internal */
    public static function fromObject(JsonObject $object): self
    {
        $envelope = $object->object('envelope');
        $answered = $object->object('in_reply_to_email');

        return new self(
            inboundId: $object->string('inbound_id'),
            envelopeFrom: $envelope?->string('from'),
            envelopeTo: $envelope?->strings('to') ?? [],
            from: $object->string('from'),
            to: $object->strings('to') ?? [],
            cc: $object->strings('cc') ?? [],
            replyTo: $object->strings('reply_to') ?? [],
            subject: $object->string('subject'),
            text: $object->string('text'),
            html: $object->string('html'),
            headers: self::headers($object),
            messageId: $object->string('message_id'),
            inReplyTo: $object->string('in_reply_to'),
            answeredId: $answered?->string('id'),
            answeredMetadata: $answered?->stringMap('metadata'),
            attachments: array_map(ReceivedFile::fromObject(...), $object->objects('attachments') ?? []),
            spf: $object->string('spf'),
            dkim: $object->string('dkim'),
            dmarc: $object->string('dmarc'),
            size: $object->int('size'),
            rawUrl: $object->string('raw_url'),
            truncated: $object->bool('truncated') ?? false,
            autoSubmitted: $object->bool('auto_submitted') ?? false,
        );
    }

    /** @return list<array{name: string, value: string}> */
    private static function headers(JsonObject $object): array
    {
        $headers = [];
        foreach ($object->objects('headers') ?? [] as $header) {
            [$name, $value] = [$header->string('name'), $header->string('value')];
            if ($name !== null && $value !== null) {
                $headers[] = ['name' => $name, 'value' => $value];
            }
        }

        return $headers;
    }
}
