<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * Turns a framework's MIME message into the array that send() takes. Whatever the interface's JSON cannot carry
 * is refused by a ConfigurationError that names it; nothing is dropped.
 *
 * @internal
 */
final class MimeEmail
{
    /** Names that the interface refuses in `headers`. */
    private const RESERVED = '/^(from|sender|reply-to|to|cc|bcc|subject|date|message-id|mime-version|content-.*|return-path'
        . '|received.*|delivered-to|errors-to|dkim-signature|domainkey-signature|arc-.*|authentication-results|resent-.*'
        . '|tls-required|x-originating-ip|x-service-.*)$/Di';

    private ?string $idempotencyKey = null;
    private ?string $sender = null;

    /** @var array<string, mixed> */
    private array $fields = [];

    /** @var array<string, list<string>> bare addresses by field */
    private array $bare = ['from' => [], 'to' => [], 'cc' => [], 'bcc' => [], 'reply_to' => []];

    /** @var array<string, string> */
    private array $headers = [];

    /** @var list<string> */
    private array $tags = [];

    /** @var array<string, string> */
    private array $metadata = [];

    /** @var list<Attachment> */
    private array $attachments = [];

    /** @var array<string, string> the URL by content id to use instead of another */
    private array $stableIds = [];

    /** An address of `from`, `reply_to`, `to`, `cc` or `bcc`. */
    public function address(string $field, string $address, ?string $name): void
    {
        $this->bare[$field][] = $address;
        $written = ($name ?? '') === '' ? $address : '"' . addcslashes($name, '"\\') . "\" <{$address}>";
        if ($field !== 'from' && $field !== 'reply_to') {
            $this->fields[$field][] = $written;
        } elseif (\count($this->bare[$field]) === 1) {
            $this->fields[$field] = $written;
        } else {
            throw new ConfigurationError($field === 'from' ? 'the message has more than one From address' : 'the message has more than one Reply-To address');
        }
    }

    /** The Sender header. */
    public function sender(string $address): void
    {
        $this->sender = $address;
    }

    public function subject(string $subject): void
    {
        $this->fields['subject'] = $subject;
    }

    /** Any header that has no field of its own. */
    public function header(string $name, string $value): void
    {
        $value = preg_replace('/\r?\n(?=[ \t])/', '', $value); // RFC 5322 2.2.3: unfolded
        switch (strtolower($name)) {
            case 'idempotency-key':
                if ($this->idempotencyKey !== null) {
                    throw new ConfigurationError('the message has more than one Idempotency-Key header');
                }
                $this->idempotencyKey = $value;

                return;
            case 'x-service-tag': // as over SMTP
                array_map($this->tag(...), array_map('trim', explode(',', $value)));

                return;
            case 'x-service-metadata': // as over SMTP
                if (!str_contains($value, '=')) {
                    throw new ConfigurationError('the header X-Service-Metadata must be key=value');
                }
                $this->metadata(...array_map('trim', explode('=', $value, 2)));

                return;
            case 'x-service-scheduled-at':
                if (isset($this->fields['scheduled_at'])) {
                    throw new ConfigurationError('the message has more than one X-Service-Scheduled-At header');
                }
                $this->fields['scheduled_at'] = trim($value);

                return;
        }
        if (preg_match(self::RESERVED, $name)) {
            throw new ConfigurationError("the message has the header {$name}, which the appliance sets itself");
        }
        if (\array_key_exists(strtolower($name), array_change_key_case($this->headers))) {
            throw new ConfigurationError("the message has the header {$name} more than once");
        }
        $this->headers[$name] = $value;
    }

    public function tag(string $tag): void
    {
        $this->tags[] = $tag;
    }

    public function metadata(string $key, string $value): void
    {
        if (isset($this->metadata[$key])) {
            throw new ConfigurationError("the message has the metadata {$key} more than once");
        }
        $this->metadata[$key] = $value;
    }

    /** A body of the message: `plain` or `html`, one of each at most. */
    public function body(string $subtype, string $content, string $charset): void
    {
        $field = match ($subtype) {
            'plain' => 'text',
            'html' => 'html',
            default => throw new ConfigurationError("the message has a text/{$subtype} body"),
        };
        if (isset($this->fields[$field])) {
            throw new ConfigurationError("the message has more than one text/{$subtype} body");
        }
        $this->fields[$field] = preg_match('/^(utf-?8|us-ascii)$/Di', $charset) ? $content : self::utf8($content, $charset);
    }

    /**
     * An attachment; with a content id an inline image. The random ids of the frameworks become stable ones: an email that
     * is made again, as by the retry of a queued job, must be the same under the same idempotency key.
     */
    public function attach(string $bytes, ?string $filename, string $type, ?string $contentId): void
    {
        if ($contentId !== null && preg_match('/^[0-9a-f]{32}@/', $contentId)) {
            $stable = 'inline' . (\count($this->stableIds) + 1) . '@mail-appliance';
            $this->stableIds["cid:{$contentId}"] = "cid:{$stable}";
            $filename = $filename === $contentId ? $stable : $filename;
            $contentId = $stable;
        }
        $this->attachments[] = Attachment::fromBytes($bytes, $filename ?? $contentId ?? '', $type, $contentId);
    }

    /**
     * The appliance makes the envelope from the headers; another one cannot be sent, except that recipients
     * who are in no header are blind copies.
     *
     * @param list<string> $recipients
     */
    public function envelope(string $sender, array $recipients): void
    {
        $this->refuseOtherSender();
        if (strcasecmp($sender, $this->bare['from'][0] ?? '') !== 0) {
            throw new ConfigurationError("the envelope sender {$sender} is not the From address; the appliance sets the return path itself");
        }
        $named = [...$this->bare['to'], ...$this->bare['cc'], ...$this->bare['bcc']];
        foreach (array_udiff($named, $recipients, 'strcasecmp') as $missing) {
            throw new ConfigurationError("the recipient {$missing} is in the headers but not in the envelope");
        }
        foreach (array_udiff($recipients, $named, 'strcasecmp') as $blind) {
            $this->address('bcc', $blind, null);
        }
    }

    /** @return array<string, mixed> what send() takes */
    public function toArray(): array
    {
        if ($this->bare['to'] === []) {
            throw new ConfigurationError('the message has no To address');
        }
        $this->refuseOtherSender();

        $fields = $this->fields;
        if (isset($fields['html'])) {
            $fields['html'] = strtr($fields['html'], $this->stableIds);
        }

        return $fields + array_filter([
            'headers' => $this->headers,
            'tags' => $this->tags,
            'attachments' => $this->attachments,
            'metadata' => $this->metadata,
        ]);
    }

    /** The message's Idempotency-Key header. */
    public function idempotencyKey(): ?string
    {
        return $this->idempotencyKey;
    }

    private function refuseOtherSender(): void
    {
        if ($this->sender !== null && strcasecmp($this->sender, $this->bare['from'][0] ?? '') !== 0) {
            throw new ConfigurationError("the Sender {$this->sender} is not the From address");
        }
    }

    private static function utf8(string $content, string $charset): string
    {
        try {
            return mb_convert_encoding($content, 'UTF-8', $charset);
        } catch (\ValueError $error) {
            throw new ConfigurationError("the message has a body in the unknown charset {$charset}", previous: $error);
        }
    }
}
