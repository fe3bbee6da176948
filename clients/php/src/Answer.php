<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * A successful answer: a 2xx with a JSON object that has an id, or the results of a batch.
 *
 * @internal
 */
final class Answer
{
    private function __construct(
        public readonly Response $response,
        public readonly JsonObject $object,
        public readonly string $id,
    ) {
    }

    /** Null when the response is not a success. */
    public static function of(Response $response, bool $isBatch = false): ?self
    {
        if ($response->status < 200 || $response->status > 299) {
            return null;
        }
        $object = JsonObject::parse($response->body);
        $id = $isBatch ? ($object?->objects('results') === null ? null : '') : $object?->string('id');

        return $object === null || $id === null ? null : new self($response, $object, $id);
    }

    public function isReplayed(): bool
    {
        return strtolower($this->response->header('Idempotent-Replayed') ?? '') === 'true';
    }

    public function requestId(): ?string
    {
        return $this->object->string('request_id') ?? $this->response->header('X-Request-ID');
    }
}
