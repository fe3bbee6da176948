<?php

declare(strict_types=1);

namespace MailAppliance;

/** A webhook event whose signature was verified. Retries and replays have the same id. */
final class Event
{
    /** @param string $type `email.delivered`, `email.bounced`, `email.failed`, `email.delayed`, `email.late_bounced`, `email.complained`, `email.received`, `webhook.test`, or one that this library does not know */
    public function __construct(
        public readonly string $id,
        public readonly string $type,
        public readonly ?\DateTimeImmutable $createdAt,
        public readonly EventData $data,
        /** Only in `email.received`. */
        public readonly ?ReceivedEmail $received = null,
    ) {
    }
}
