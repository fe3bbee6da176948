<?php

declare(strict_types=1);

namespace MailAppliance;

/** The recipient's result that an event reports. What the event did not say is null. */
final class EventData
{
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
        );
    }
}
