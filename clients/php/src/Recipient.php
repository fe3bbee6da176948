<?php

declare(strict_types=1);

namespace MailAppliance;

/** One recipient of a message. */
final class Recipient
{
    /** @param ?string $status `scheduled`, `queued`, `deferred`, `delivered`, `bounced`, `failed`, or one that this library does not know */
    public function __construct(
        public readonly ?string $id,
        public readonly ?string $email,
        public readonly ?string $status,
        public readonly ?string $billingStatus,
        public readonly ?int $attemptCount,
        public readonly ?int $lastSmtpCode,
        public readonly ?string $lastSmtpResponse,
        public readonly ?\DateTimeImmutable $deliveredAt,
        public readonly ?\DateTimeImmutable $bouncedAt,
    ) {
    }

    /** @internal */
    public static function fromObject(JsonObject $object): self
    {
        return new self(
            id: $object->string('id'),
            email: $object->string('email'),
            status: $object->string('status'),
            billingStatus: $object->string('billing_status'),
            attemptCount: $object->int('attempt_count'),
            lastSmtpCode: $object->int('last_smtp_code'),
            lastSmtpResponse: $object->string('last_smtp_response'),
            deliveredAt: $object->time('delivered_at'),
            bouncedAt: $object->time('bounced_at'),
        );
    }
}
