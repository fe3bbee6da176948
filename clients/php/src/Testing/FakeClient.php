<?php

declare(strict_types=1);

namespace MailAppliance\Testing;

use MailAppliance\BatchItem;
use MailAppliance\BatchResult;
use MailAppliance\Client;
use MailAppliance\Mailer;
use MailAppliance\MailApplianceError;
use MailAppliance\Message;
use MailAppliance\SentEmail;

/**
 * A recording client for tests: the checks, the keys and the results of the real one, without a network.
 * As in the appliance's sandbox, recipients that begin with `bounce` bounce, those that begin with `fail` fail,
 * and all others are delivered. Recipients of a scheduled email stay `scheduled` until the test cancels it.
 */
final class FakeClient implements Mailer
{
    private readonly FakeTransport $transport;
    private readonly Client $client;

    /** @var list<array{email: array<string, mixed>, idempotencyKey: string, result: SentEmail|BatchItem}> */
    private array $sent = [];

    /** @var list<MailApplianceError> */
    private array $errors = [];

    public function __construct()
    {
        $this->transport = new FakeTransport();
        $this->client = new Client('http://appliance.invalid', token: 'fake', transport: $this->transport);
    }

    /**
     * The accepted emails, oldest first: the email as passed in, its key, and the result.
     *
     * @return list<array{email: array<string, mixed>, idempotencyKey: string, result: SentEmail|BatchItem}>
     */
    public function sent(): array
    {
        return $this->sent;
    }

    /** Makes the next call throw this error; called again, the call after it. */
    public function failWith(MailApplianceError $error): void
    {
        $this->errors[] = $error;
    }

    public function send(array $email, ?string $idempotencyKey = null): SentEmail
    {
        $this->throwNextError();
        $result = $this->client->send($email, $idempotencyKey);
        $this->sent[] = ['email' => $email, 'idempotencyKey' => $result->idempotencyKey, 'result' => $result];

        return $result;
    }

    public function sendBatch(iterable $emails, ?string $onError = null, ?string $idempotencyKey = null): BatchResult
    {
        $this->throwNextError();
        $emails = [...$emails];
        $batch = $this->client->sendBatch($emails, $onError, $idempotencyKey);
        foreach ($batch->results as $index => $result) {
            $this->sent[] = ['email' => $emails[$index], 'idempotencyKey' => $batch->idempotencyKey, 'result' => $result];
        }

        return $batch;
    }

    public function cancel(string $id): Message
    {
        $this->throwNextError();

        return $this->client->cancel($id);
    }

    public function reschedule(string $id, \DateTimeInterface|string $scheduledAt): Message
    {
        $this->throwNextError();

        return $this->client->reschedule($id, $scheduledAt);
    }

    public function sendAll(iterable $emails, array $idempotencyKeys = []): array
    {
        $results = [];
        foreach ($emails as $email) {
            try {
                $results[] = $this->send($email, $idempotencyKeys[\count($results)] ?? null);
            } catch (MailApplianceError $error) {
                $results[] = $error;
            }
        }

        return $results;
    }

    public function get(string $id): Message
    {
        $this->throwNextError();

        return $this->client->get($id);
    }

    public function wait(string $id, float $timeout = 60): Message
    {
        return $this->get($id);
    }

    private function throwNextError(): void
    {
        if ($this->errors !== []) {
            throw array_shift($this->errors);
        }
    }
}
