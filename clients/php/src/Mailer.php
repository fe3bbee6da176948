<?php

declare(strict_types=1);

namespace MailAppliance;

/** Sends email and reads its delivery status: Client, and Testing\FakeClient in tests. */
interface Mailer
{
    /**
     * Sends one email. It is safe to send again after any error, with the same email and the error's idempotency key.
     *
     * @param array{
     *     from: string,
     *     to: string|array<string>,
     *     cc?: string|array<string>|null,
     *     bcc?: string|array<string>|null,
     *     reply_to?: ?string,
     *     subject?: ?string,
     *     text?: ?string,
     *     html?: ?string,
     *     template?: ?string,
     *     variables?: ?array<string, string|int|float|bool>,
     *     headers?: ?array<string, string>,
     *     tags?: string|array<string>|null,
     *     attachments?: ?array<Attachment>,
     *     scheduled_at?: \DateTimeInterface|string|null,
     *     metadata?: ?array<string, string>,
     * } $email
     * @param ?string $idempotencyKey 1 to 255 printable ASCII characters; made by the library when not given
     *
     * @throws MailApplianceError
     */
    public function send(array $email, ?string $idempotencyKey = null): SentEmail;

    /**
     * Sends up to 100 emails in one request with one key. InvalidRequest names the email that refuses the batch, as in
     * `emails[3].to: …`.
     *
     * @param iterable<array<string, mixed>> $emails  each as for send()
     * @param ?string                        $onError `skip` accepts the other emails; the default `reject` accepts none
     *
     * @throws NotSupported       when the server is older than 0.7
     * @throws MailApplianceError
     */
    public function sendBatch(iterable $emails, ?string $onError = null, ?string $idempotencyKey = null): BatchResult;

    /**
     * Cancels what is still queued or scheduled of a message. If the answer to a first attempt was lost, Conflict can mean
     * that this attempt succeeded: get() shows it.
     *
     * @throws Conflict           when nothing is left to cancel
     * @throws NotSupported       when the server is older than 0.7
     * @throws MailApplianceError
     */
    public function cancel(string $id): Message;

    /**
     * Moves a scheduled message to another time.
     *
     * @param \DateTimeInterface|string $scheduledAt text is RFC 3339
     *
     * @throws Conflict           once the message is due
     * @throws NotSupported       when the server is older than 0.7
     * @throws MailApplianceError
     */
    public function reschedule(string $id, \DateTimeInterface|string $scheduledAt): Message;

    /**
     * Sends many emails at the same time. One that fails does not stop the others.
     *
     * @param iterable<array<string, mixed>> $emails          each as for send()
     * @param list<?string>                  $idempotencyKeys in the order of the emails; one that is missing or null is made by the library
     *
     * @return list<SentEmail|MailApplianceError> in the order of the emails
     */
    public function sendAll(iterable $emails, array $idempotencyKeys = []): array;

    /**
     * @param string $id the id of a sent email
     *
     * @throws MailApplianceError
     */
    public function get(string $id): Message;

    /**
     * Polls until the message is final: `delivered`, `partial` or `failed`.
     *
     * @param float $timeout seconds
     *
     * @throws WaitTimeout        when it is not final by then
     * @throws MailApplianceError
     */
    public function wait(string $id, float $timeout = 60): Message;
}
