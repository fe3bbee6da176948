<?php

declare(strict_types=1);

/**
 * The conformance driver: reads one JSON command per line, does it with the library's public interface,
 * writes one JSON answer per line. The protocol is in clients/conformance/README.md.
 */

use MailAppliance\ApiError;
use MailAppliance\AcceptedAttachment;
use MailAppliance\Attachment;
use MailAppliance\BatchItem;
use MailAppliance\BatchResult;
use MailAppliance\Client;
use MailAppliance\Event;
use MailAppliance\MailApplianceError;
use MailAppliance\Message;
use MailAppliance\ReceivedEmail;
use MailAppliance\ReceivedFile;
use MailAppliance\Recipient;
use MailAppliance\SentEmail;
use MailAppliance\Webhook;

require __DIR__ . '/../tests/autoload.php';

set_error_handler(static function (int $level, string $message, string $file, int $line): never {
    throw new ErrorException($message, 0, $level, $file, $line);
});
ini_set('memory_limit', '512M');

function rfc3339(?DateTimeImmutable $time): ?string
{
    return $time?->format('Y-m-d\TH:i:s.vp');
}

/** @return array<string, mixed> */
function email(array $message): array
{
    if (isset($message['attachments'])) {
        $message['attachments'] = array_map(attachment(...), $message['attachments']);
    }
    $message['scheduled_at'] = scheduled($message);
    unset($message['scheduled_unix']);

    return $message;
}

function scheduled(array $given): DateTimeInterface|string|null
{
    return isset($given['scheduled_unix']) ? new DateTimeImmutable("@{$given['scheduled_unix']}") : $given['scheduled_at'] ?? null;
}

function batch(BatchResult $batch): array
{
    return [
        'results' => array_map(static fn (BatchItem $item): array => [
            'index' => $item->index, 'id' => $item->id, 'status' => $item->status, 'recipient_count' => $item->recipientCount,
            'credits_reserved' => $item->creditsReserved, 'error' => $item->error, 'code' => $item->code,
        ], $batch->results),
        'accepted' => $batch->accepted,
        'refused' => $batch->refused,
        'request_id' => $batch->requestId,
        'idempotency_key' => $batch->idempotencyKey,
        'replayed' => $batch->replayed,
    ];
}

function attachment(array $given): Attachment
{
    $named = ['filename' => $given['filename'] ?? null, 'contentType' => $given['content_type'] ?? null, 'contentId' => $given['content_id'] ?? null];

    return match (true) {
        isset($given['bytes_base64']) => Attachment::fromBytes(base64_decode($given['bytes_base64'], true), ...$named),
        isset($given['path']) => Attachment::fromPath($given['path'], ...$named),
        default => Attachment::fromStream(fopen($given['stream_path'], 'rb'), ...$named),
    };
}

function sent(SentEmail $sent): array
{
    return [
        'id' => $sent->id,
        'status' => $sent->status,
        'source' => $sent->source,
        'request_id' => $sent->requestId,
        'from' => $sent->from,
        'to' => $sent->to,
        'cc' => $sent->cc,
        'bcc' => $sent->bcc,
        'subject' => $sent->subject,
        'billing_status' => $sent->billingStatus,
        'recipient_count' => $sent->recipientCount,
        'credits_reserved' => $sent->creditsReserved,
        'tags' => $sent->tags,
        'attachments' => $sent->attachments === null ? null : array_map(static fn (AcceptedAttachment $a): array => [
            'filename' => $a->filename, 'content_type' => $a->contentType, 'size' => $a->size, 'content_id' => $a->contentId,
        ], $sent->attachments),
        'scheduled_at' => rfc3339($sent->scheduledAt),
        'idempotency_key' => $sent->idempotencyKey,
        'replayed' => $sent->replayed,
    ];
}

function message(Message $message): array
{
    return [
        'id' => $message->id,
        'status' => $message->status,
        'source' => $message->source,
        'from' => $message->from,
        'subject' => $message->subject,
        'billing_status' => $message->billingStatus,
        'recipient_count' => $message->recipientCount,
        'credits_reserved' => $message->creditsReserved,
        'created_at' => rfc3339($message->createdAt),
        'request_id' => $message->requestId,
        'recipients' => $message->recipients === null ? null : array_map(recipient(...), $message->recipients),
        'scheduled_at' => rfc3339($message->scheduledAt),
        'metadata' => $message->metadata,
    ];
}

function recipient(Recipient $recipient): array
{
    return [
        'id' => $recipient->id,
        'email' => $recipient->email,
        'status' => $recipient->status,
        'billing_status' => $recipient->billingStatus,
        'attempt_count' => $recipient->attemptCount,
        'last_smtp_code' => $recipient->lastSmtpCode,
        'last_smtp_response' => $recipient->lastSmtpResponse,
        'delivered_at' => rfc3339($recipient->deliveredAt),
        'bounced_at' => rfc3339($recipient->bouncedAt),
    ];
}

function event(Event $event): array
{
    $data = $event->data;
    $fields = [
        'email_id' => $data->emailId,
        'recipient_id' => $data->recipientId,
        'to' => $data->to,
        'from' => $data->from,
        'subject' => $data->subject,
        'smtp_code' => $data->smtpCode,
        'smtp_response' => $data->smtpResponse,
        'bounce_class' => $data->bounceClass,
        'message_id' => $data->messageId,
        'tags' => $data->tags,
        'metadata' => $data->metadata,
        'stream' => $data->stream,
        'test' => $data->test,
    ];

    return [
        'id' => $event->id,
        'type' => $event->type,
        'created_at' => rfc3339($event->createdAt),
        'data' => (object) array_filter($fields, static fn (mixed $value): bool => $value !== null),
        'received' => $event->received === null ? null : received($event->received),
    ];
}

function received(ReceivedEmail $email): array
{
    $answered = ['id' => $email->answeredId, 'metadata' => $email->answeredMetadata];

    return [
        'inbound_id' => $email->inboundId,
        'envelope' => ['from' => $email->envelopeFrom, 'to' => $email->envelopeTo],
        'from' => $email->from,
        'to' => $email->to,
        'cc' => $email->cc,
        'reply_to' => $email->replyTo,
        'subject' => $email->subject,
        'text' => $email->text,
        'html' => $email->html,
        'headers' => $email->headers,
        'message_id' => $email->messageId,
        'in_reply_to' => $email->inReplyTo,
        'in_reply_to_email' => $email->answeredId === null ? null : $answered,
        'attachments' => array_map(static fn (ReceivedFile $file): array => [
            'number' => $file->number,
            'filename' => $file->filename,
            'content_type' => $file->contentType,
            'size' => $file->size,
            'url' => $file->url,
        ], $email->attachments),
        'spf' => $email->spf,
        'dkim' => $email->dkim,
        'dmarc' => $email->dmarc,
        'size' => $email->size,
        'raw_url' => $email->rawUrl,
        'truncated' => $email->truncated,
        'auto_submitted' => $email->autoSubmitted,
    ];
}

function failure(MailApplianceError $error): array
{
    $api = $error instanceof ApiError ? $error : null;

    return ['error' => [
        'class' => substr(strrchr($error::class, '\\'), 1),
        'status' => $api?->status,
        'code' => $api?->errorCode,
        'message' => $error->getMessage(),
        'request_id' => $api?->requestId,
        'retry_after' => $api?->retryAfter,
        'idempotency_key' => $error->idempotencyKey,
    ]];
}

/** Only the fields that the command has, under the library's names. */
function options(array $command, array $names): array
{
    $options = [];
    foreach ($names as $field => $name) {
        if (array_key_exists($field, $command)) {
            $options[$name] = $command[$field];
        }
    }

    return $options;
}

function answer(array $command, ?Client &$client): array
{
    switch ($command['command']) {
        case 'client':
            $client = new Client(...options($command, [
                'url' => 'url', 'username' => 'username', 'password' => 'password', 'token' => 'token',
                'retries' => 'retries', 'connect_timeout' => 'connectTimeout', 'timeout' => 'timeout',
            ]));

            return ['ok' => true];
        case 'send':
            return ['result' => sent($client->send(email($command['message']), ...options($command, ['idempotency_key' => 'idempotencyKey'])))];
        case 'send_batch':
            return ['result' => batch($client->sendBatch(array_map(email(...), $command['messages']), ...options($command, ['on_error' => 'onError', 'idempotency_key' => 'idempotencyKey'])))];
        case 'cancel':
            return ['result' => message($client->cancel($command['id']))];
        case 'reschedule':
            return ['result' => message($client->reschedule($command['id'], scheduled($command)))];
        case 'get':
            return ['result' => message($client->get($command['id']))];
        case 'wait':
            return ['result' => message($client->wait($command['id'], ...options($command, ['timeout' => 'timeout'])))];
        case 'parallel':
            $results = $client->sendAll(array_fill(0, $command['count'], email($command['message'])));

            return ['results' => array_map(static fn ($result) => $result instanceof SentEmail ? sent($result) : failure($result), $results)];
        case 'verify':
            return ['result' => event(Webhook::verify(
                base64_decode($command['body_base64'], true),
                $command['header'],
                $command['secrets'],
                ...options($command, ['tolerance' => 'tolerance', 'now' => 'now']),
            ))];
        default:
            throw new LogicException("unknown command {$command['command']}");
    }
}

$client = null;
while (($line = fgets(STDIN)) !== false) {
    try {
        $answer = answer(json_decode($line, true, 64, JSON_THROW_ON_ERROR), $client);
    } catch (MailApplianceError $error) {
        $answer = failure($error);
    }
    fwrite(STDOUT, json_encode($answer, JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES) . "\n");
}
