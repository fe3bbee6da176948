<?php

declare(strict_types=1);

namespace MailAppliance;

/** The recipient's result that an event reports. What the event did not say is null. */
final class EventData
{
    /**
     * @param ?string                $bounceClass only in events of bounces and delays
     * @param ?string                $messageId   the Message-ID header, without brackets
     * @param ?list<string>          $tags
     * @param ?array<string, string> $metadata
     */
    public function __construct(
        public readonly ?string $emailId = null,
        public readonly ?string $recipientId = null,
        public readonly ?string $to = null,
        public readonly ?string $from = null,
        public readonly ?string $subject = null,
        public readonly ?int $smtpCode = null,
        public readonly ?string $smtpResponse = null,
        public readonly ?bool $test = null,
        public readonly ?string $bounceClass = null,
        public readonly ?string $messageId = null,
        public readonly ?array $tags = null,
        public readonly ?array $metadata = null,
        public readonly ?string $stream = null,
    ) {
    }

    /** @internal */
    public static function fromObject(JsonObject $object): self
    {
        return new self(
            emailId: $object->string('email_id'),
            recipientId: $object->string('recipient_id'),
            to: $object->string('to'),
            from: $object->string('from'),
            subject: $object->string('subject'),
            smtpCode: $object->int('smtp_code'),
            smtpResponse: $object->string('smtp_response'),
            test: $object->bool('test'),
            bounceClass: $object->string('bounce_class'),
            messageId: $object->string('message_id'),
            tags: $object->strings('tags'),
            metadata: $object->stringMap('metadata'),
            stream: $object->string('stream'),
        );
    }
}
