<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * A file to send with an email, read when it is made. The library does the base64.
 * With a content id it is an inline image, which the HTML refers to as `cid:<content id>`.
 */
final class Attachment
{
    private function __construct(
        public readonly string $filename,
        public readonly string $bytes,
        public readonly ?string $contentType,
        public readonly ?string $contentId,
    ) {
        if ($filename === '') {
            throw new ConfigurationError('an attachment has no file name');
        }
    }

    public static function fromBytes(string $bytes, string $filename, ?string $contentType = null, ?string $contentId = null): self
    {
        return new self($filename, $bytes, $contentType, $contentId);
    }

    /** @param ?string $filename the path's last part when not given */
    public static function fromPath(string $path, ?string $filename = null, ?string $contentType = null, ?string $contentId = null): self
    {
        $bytes = is_file($path) ? @file_get_contents($path) : false;
        if ($bytes === false) {
            throw new ConfigurationError("the attachment {$path} cannot be read");
        }
        // basename() depends on the locale.
        $lastPart = preg_replace(\DIRECTORY_SEPARATOR === '\\' ? '~^.*[/\\\\]~s' : '~^.*/~s', '', $path);

        return new self($filename ?? $lastPart, $bytes, $contentType, $contentId);
    }

    /** @param resource $stream read to its end from where it stands, and left open */
    public static function fromStream($stream, string $filename, ?string $contentType = null, ?string $contentId = null): self
    {
        if (!\is_resource($stream) || get_resource_type($stream) !== 'stream') {
            throw new ConfigurationError("the attachment {$filename} is not an open stream");
        }
        // A stream that cannot be read gives '' and a notice.
        set_error_handler(static fn (int $level, string $message) => throw new ConfigurationError("the attachment {$filename} cannot be read from its stream: {$message}"));
        try {
            $bytes = (string) stream_get_contents($stream);
        } finally {
            restore_error_handler();
        }

        return new self($filename, $bytes, $contentType, $contentId);
    }

    /**
     * @internal
     *
     * @return array<string, string>
     */
    public function toArray(): array
    {
        return array_filter([
            'filename' => $this->filename,
            'content' => base64_encode($this->bytes),
            'content_type' => $this->contentType,
            'content_id' => $this->contentId,
        ], static fn (?string $value): bool => $value !== null);
    }
}
