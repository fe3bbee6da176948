<?php

declare(strict_types=1);

namespace MailAppliance;

/** A file attached to a received email. Its URL is valid for an hour from the event. */
final class ReceivedFile
{
    public function __construct(
        public readonly ?int $number,
        public readonly ?string $filename,
        public readonly ?string $contentType,
        public readonly ?int $size,
        public readonly ?string $url,
    ) {
    }

    /** @internal */
    public static function fromObject(JsonObject $object): self
    {
        return new self(
            number: $object->int('number'),
            filename: $object->string('filename'),
            contentType: $object->string('content_type'),
            size: $object->int('size'),
            url: $object->string('url'),
        );
    }
}
