<?php

declare(strict_types=1);

namespace MailAppliance;

/** An accepted email: it is queued, not yet delivered. What the answer did not say is null. */
final class SentEmail
{
    /**
     * @param string                      $idempotencyKey the key of this send, given or automatic
     * @param bool                        $replayed       true when the appliance replayed the answer to an earlier send with this key
     * @param ?list<string>               $to
     * @param ?list<string>               $cc
     * @param ?list<string>               $bcc
     * @param ?array<string, string>      $headers
     * @param ?list<string>               $tags
     * @param ?list<AcceptedAttachment>   $attachments
     */
    public function __construct(
        public readonly string $id,
        public readonly string $idempotencyKey,
        public readonly bool $replayed = false,
        public readonly ?string $status = null,
        public readonly ?string $source = null,
        public readonly ?string $requestId = null,
        public readonly ?string $from = null,
        public readonly ?array $to = null,
        public readonly ?array $cc = null,
        public readonly ?array $bcc = null,
        public readonly ?string $replyTo = null,
        public readonly ?string $subject = null,
        public readonly ?string $billingStatus = null,
        public readonly ?int $recipientCount = null,
        public readonly ?int $creditsReserved = null,
        public readonly ?array $headers = null,
        public readonly ?array $tags = null,
        public readonly ?array $attachments = null,
        public readonly ?\DateTimeImmutable $scheduledAt = null,
    ) {
    }

    /** @internal */
    public static function fromAnswer(Answer $answer, string $idempotencyKey): self
    {
        $object = $answer->object;
        $attachments = $object->objects('attachments');

        return new self(
            id: $answer->id,
            idempotencyKey: $idempotencyKey,
            replayed: $answer->isReplayed(),
            status: $object->string('status'),
            source: $object->string('source'),
            requestId: $answer->requestId(),
            from: $object->string('from'),
            to: $object->strings('to'),
            cc: $object->strings('cc'),
            bcc: $object->strings('bcc'),
            replyTo: $object->string('reply_to'),
            subject: $object->string('subject'),
            billingStatus: $object->string('billing_status'),
            recipientCount: $object->int('recipient_count'),
            creditsReserved: $object->int('credits_reserved'),
            headers: $object->stringMap('headers'),
            tags: $object->strings('tags'),
            attachments: $attachments === null ? null : array_map(AcceptedAttachment::fromObject(...), $attachments),
            scheduledAt: $object->time('scheduled_at'),
        );
    }
}
