<?php

declare(strict_types=1);

namespace MailAppliance\Testing;

use MailAppliance\Request;
use MailAppliance\Response;
use MailAppliance\Transport;

/**
 * Answers as the appliance's sandbox does, from memory.
 *
 * @internal
 */
final class FakeTransport implements Transport
{
    /** @var array<string, array{string, array<string, mixed>}> the request body and the answer by idempotency key */
    private array $accepted = [];

    /** @var array<string, array<string, mixed>> messages by id */
    private array $messages = [];

    public function send(Request $request): Response
    {
        $path = explode('/', parse_url($request->url, \PHP_URL_PATH));
        $key = $request->headers['Idempotency-Key'] ?? null;
        if ($request->method === 'GET' && isset($path[3])) {
            return self::error(405, 'invalid_request', 'Use POST.');
        }
        if ($key === null) {
            return $this->answerAbout(rawurldecode($path[2]), isset($path[3]) ? 'CANCEL' : $request->method, $request->body);
        }
        if (!isset($this->accepted[$key])) {
            $content = json_decode($request->body, true);
            $this->accepted[$key] = [$request->body, isset($path[2]) ? $this->acceptBatch($content['emails']) : $this->accept($content)];

            return self::json(202, $this->accepted[$key][1]);
        }
        [$body, $answer] = $this->accepted[$key];

        return $body === $request->body
            ? self::json(202, $answer, ['Idempotent-Replayed' => 'true'])
            : self::error(409, 'idempotency_conflict', 'This key was used with another email.');
    }

    private function answerAbout(string $id, string $action, ?string $body): Response
    {
        if (!isset($this->messages[$id])) {
            return self::error(404, 'not_found', 'There is no such message.');
        }
        $message = &$this->messages[$id];
        if ($action !== 'GET' && $message['recipients'][0]['status'] !== 'scheduled') {
            return self::error(409, 'conflict', 'The message has no scheduled recipients.');
        }
        if ($action === 'PATCH') {
            $message['scheduled_at'] = json_decode($body, true)['scheduled_at'];
        } elseif ($action === 'CANCEL') {
            $message = self::waiting('failed', 'released', $message);
            $message['status'] = 'failed';
        }

        return self::json(200, $message);
    }

    /**
     * @param array<string, mixed> $message
     *
     * @return array<string, mixed> the message with this result for each of its recipients
     */
    private static function waiting(string $status, string $billing, array $message): array
    {
        $about = ['status' => $status, 'billing_status' => $billing, 'attempt_count' => 0];
        $recipients = array_map(static fn (array $recipient): array => $about + ['id' => $recipient['id'], 'email' => $recipient['email']], $message['recipients']);

        return ['status' => 'queued', 'billing_status' => $billing, 'recipients' => $recipients] + $message;
    }

    /**
     * @param list<array<string, mixed>> $emails
     *
     * @return array<string, mixed> the answer
     */
    private function acceptBatch(array $emails): array
    {
        $shown = array_flip(['id', 'status', 'recipient_count', 'credits_reserved']);
        $results = array_map(fn (array $email, int $index): array => ['index' => $index] + array_intersect_key($this->accept($email), $shown), $emails, array_keys($emails));

        return ['results' => $results, 'accepted' => \count($results), 'refused' => 0, 'request_id' => 'req_fake'];
    }

    /**
     * @param array<string, mixed> $email
     *
     * @return array<string, mixed> the answer
     */
    private function accept(array $email): array
    {
        $number = \count($this->messages) + 1;
        $lists = array_map(static fn (string $name): array => (array) ($email[$name] ?? []), ['to' => 'to', 'cc' => 'cc', 'bcc' => 'bcc', 'tags' => 'tags']);
        $recipients = array_map(self::recipient(...), array_values(array_unique([...$lists['to'], ...$lists['cc'], ...$lists['bcc']])));
        $common = [
            'id' => "msg_fake{$number}",
            'source' => 'api',
            'request_id' => "req_fake{$number}",
            'from' => $email['from'] ?? null,
            'subject' => $email['subject'] ?? null,
            'recipient_count' => \count($recipients),
            'credits_reserved' => \count($recipients),
        ];
        $delivered = \count(array_filter($recipients, static fn (array $recipient): bool => $recipient['status'] === 'delivered'));
        $status = match ($delivered) {
            \count($recipients) => 'delivered',
            0 => 'failed',
            default => 'partial',
        };
        $common += array_intersect_key($email, ['scheduled_at' => true]);
        $message = $common + ['status' => $status, 'billing_status' => 'settled', 'created_at' => date(\DATE_RFC3339), 'recipients' => $recipients, 'metadata' => $email['metadata'] ?? null];
        $this->messages[$common['id']] = isset($email['scheduled_at']) ? self::waiting('scheduled', 'reserved', $message) : $message;
        $attachments = array_map(static fn (array $attachment): array => [
            'filename' => $attachment['filename'],
            'content_type' => $attachment['content_type'] ?? 'application/octet-stream',
            'size' => \strlen(base64_decode($attachment['content'])),
            'content_id' => $attachment['content_id'] ?? null,
        ], $email['attachments'] ?? []);

        return $common + $lists + [
            'status' => 'queued',
            'billing_status' => 'reserved',
            'reply_to' => $email['reply_to'] ?? null,
            'headers' => (object) ($email['headers'] ?? []),
            'attachments' => $attachments,
        ];
    }

    /** @return array<string, mixed> */
    private static function recipient(string $written): array
    {
        $address = preg_match('/<([^<>]+)>$/', $written, $match) ? $match[1] : $written;
        [$status, $code, $text] = match (true) {
            str_starts_with($address, 'bounce') => ['bounced', 550, '550 5.1.1 User unknown (simulated)'],
            str_starts_with($address, 'fail') => ['failed', 451, '451 4.3.0 Try again later (simulated)'],
            default => ['delivered', 250, '250 2.0.0 OK (simulated)'],
        };

        return [
            'id' => 'rcp_fake' . hash('crc32b', $address),
            'email' => $address,
            'status' => $status,
            'billing_status' => $status === 'bounced' ? 'released' : 'settled',
            'attempt_count' => $status === 'failed' ? 12 : 1,
            'last_smtp_code' => $code,
            'last_smtp_response' => $text,
            'delivered_at' => $status === 'delivered' ? date(\DATE_RFC3339) : null,
            'bounced_at' => $status === 'bounced' ? date(\DATE_RFC3339) : null,
        ];
    }

    /**
     * @param array<string, mixed>  $value
     * @param array<string, string> $headers
     */
    private static function json(int $status, array $value, array $headers = []): Response
    {
        return new Response($status, $headers, json_encode($value, JSON_THROW_ON_ERROR));
    }

    private static function error(int $status, string $code, string $message): Response
    {
        return self::json($status, ['error' => $message, 'code' => $code, 'request_id' => 'req_fake']);
    }
}
