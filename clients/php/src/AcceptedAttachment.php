<?php

declare(strict_types=1);

namespace MailAppliance;

/** An attachment as the appliance accepted it; `size` is in bytes, before base64. */
final class AcceptedAttachment
{
    public function __construct(
        public readonly ?string $filename,
        public readonly ?string $contentType,
        public readonly ?int $size,
        public readonly ?string $contentId,
    ) {
    }

    /** @internal */
    public static function fromObject(JsonObject $object): self
    {
        return new self(
            filename: $object->string('filename'),
            contentType: $object->string('content_type'),
            size: $object->int('size'),
            contentId: $object->string('content_id'),
        );
    }
}
