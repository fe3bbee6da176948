<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * Reads the fields of a decoded JSON object by type. A field that is missing or of another type is null,
 * so that an answer of a newer appliance never breaks an older library.
 *
 * @internal
 */
final class JsonObject
{
    private function __construct(private readonly \stdClass $fields)
    {
    }

    /** Null when the text is not a JSON object. */
    public static function parse(string $text): ?self
    {
        $value = json_decode($text, false, 64);

        return $value instanceof \stdClass ? new self($value) : null;
    }

    public function string(string $name): ?string
    {
        $value = $this->fields->{$name} ?? null;

        return \is_string($value) ? $value : null;
    }

    public function int(string $name): ?int
    {
        $value = $this->fields->{$name} ?? null;

        return \is_int($value) ? $value : null;
    }

    public function bool(string $name): ?bool
    {
        $value = $this->fields->{$name} ?? null;

        return \is_bool($value) ? $value : null;
    }

    public function time(string $name): ?\DateTimeImmutable
    {
        $value = $this->string($name);
        // RFC 3339 only: PHP's own parser would also take "tomorrow".
        if ($value === null || !preg_match('/^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/D', $value)) {
            return null;
        }
        try {
            return new \DateTimeImmutable($value);
        } catch (\Exception) {
            return null;
        }
    }

    public function object(string $name): ?self
    {
        $value = $this->fields->{$name} ?? null;

        return $value instanceof \stdClass ? new self($value) : null;
    }

    /** @return ?list<string> */
    public function strings(string $name): ?array
    {
        $value = $this->fields->{$name} ?? null;

        return \is_array($value) ? array_values(array_filter($value, 'is_string')) : null;
    }

    /** @return ?array<string, string> */
    public function stringMap(string $name): ?array
    {
        $value = $this->fields->{$name} ?? null;

        return $value instanceof \stdClass ? array_filter((array) $value, 'is_string') : null;
    }

    /** @return ?list<self> */
    public function objects(string $name): ?array
    {
        $value = $this->fields->{$name} ?? null;
        if (!\is_array($value)) {
            return null;
        }
        $objects = array_filter($value, static fn (mixed $item): bool => $item instanceof \stdClass);

        return array_map(static fn (\stdClass $item): self => new self($item), array_values($objects));
    }
}
