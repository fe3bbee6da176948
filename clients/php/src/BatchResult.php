<?php

declare(strict_types=1);

namespace MailAppliance;

/** An accepted batch: one result per email, in order. */
final class BatchResult
{
    /**
     * @param list<BatchItem> $results
     * @param bool            $replayed true when the appliance replayed the answer to an earlier batch with this key
     */
    public function __construct(
        public readonly array $results,
        public readonly string $idempotencyKey,
        public readonly bool $replayed = false,
        public readonly ?int $accepted = null,
        public readonly ?int $refused = null,
        public readonly ?string $requestId = null,
    ) {
    }

    /** @internal */
    public static function fromAnswer(Answer $answer, string $idempotencyKey): self
    {
        return new self(
            results: array_map(BatchItem::fromObject(...), $answer->object->objects('results') ?? []),
            idempotencyKey: $idempotencyKey,
            replayed: $answer->isReplayed(),
            accepted: $answer->object->int('accepted'),
            refused: $answer->object->int('refused'),
            requestId: $answer->requestId(),
        );
    }
}
