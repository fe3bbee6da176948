<?php

declare(strict_types=1);

namespace MailAppliance;

/** The result of one email of a batch: `id` if it was accepted, else `error` and `code`. */
final class BatchItem
{
    public function __construct(
        public readonly ?int $index = null,
        public readonly ?string $id = null,
        public readonly ?string $status = null,
        public readonly ?int $recipientCount = null,
        public readonly ?int $creditsReserved = null,
        public readonly ?string $error = null,
        public readonly ?string $code = null,
    ) {
    }

    /** @internal */
    public static function fromObject(JsonObject $object): self
    {
        return new self(
            index: $object->int('index'),
            id: $object->string('id'),
            status: $object->string('status'),
            recipientCount: $object->int('recipient_count'),
            creditsReserved: $object->int('credits_reserved'),
            error: $object->string('error'),
            code: $object->string('code'),
        );
    }
}
