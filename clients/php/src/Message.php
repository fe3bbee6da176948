<?php

declare(strict_types=1);

namespace MailAppliance;

/** A message and its delivery status. Fields missing from the answer are null. */
final class Message
{
    private const FINAL_STATUSES = ['delivered', 'partial', 'failed'];

    /**
     * @param ?string          $status     `queued`, `delivered`, `partial`, `failed`, or one that this library does not know
     * @param ?list<Recipient> $recipients
     * @param ?\DateTimeImmutable $scheduledAt null if the message was not scheduled
     * @param ?array<string, string> $metadata
     */
    public function __construct(
        public readonly string $id,
        public readonly ?string $status = null,
        public readonly ?string $source = null,
        public readonly ?string $from = null,
        public readonly ?string $subject = null,
        public readonly ?string $billingStatus = null,
        public readonly ?int $recipientCount = null,
        public readonly ?int $creditsReserved = null,
        public readonly ?\DateTimeImmutable $createdAt = null,
        public readonly ?array $recipients = null,
        public readonly ?string $requestId = null,
        public readonly ?\DateTimeImmutable $scheduledAt = null,
        public readonly ?array $metadata = null,
    ) {
    }

    /** Whether every recipient has a final result. */
    public function isFinal(): bool
    {
        return \in_array($this->status, self::FINAL_STATUSES, true);
    }

    /** @internal */
    public static function fromAnswer(Answer $answer): self
    {
        $object = $answer->object;
        $recipients = $object->objects('recipients');

        return new self(
            id: $answer->id,
            status: $object->string('status'),
            source: $object->string('source'),
            from: $object->string('from'),
            subject: $object->string('subject'),
            billingStatus: $object->string('billing_status'),
            recipientCount: $object->int('recipient_count'),
            creditsReserved: $object->int('credits_reserved'),
            createdAt: $object->time('created_at'),
            recipients: $recipients === null ? null : array_map(Recipient::fromObject(...), $recipients),
            requestId: $answer->requestId(),
            scheduledAt: $object->time('scheduled_at'),
            metadata: $object->stringMap('metadata'),
        );
    }
}
