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
        if ($request->method === 'GET') {
            $message = $this->messages[rawurldecode(substr(strrchr($request->url, '/'), 1))] ?? null;

            return $message === null ? self::error(404, 'not_found', 'There is no such message.') : self::json(200, $message);
        }
        $key = $request->headers['Idempotency-Key'];
        if (!isset($this->accepted[$key])) {
            $this->accepted[$key] = [$request->body, $this->accept(json_decode($request->body, true))];

            return self::json(202, $this->accepted[$key][1]);
        }
        [$body, $answer] = $this->accepted[$key];

        return $body === $request->body
            ? self::json(202, $answer, ['Idempotent-Replayed' => 'true'])
            : self::error(409, 'idempotency_conflict', 'This key was used with another email.');
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
        $this->messages[$common['id']] = $common + ['status' => $status, 'billing_status' => 'settled', 'created_at' => date(\DATE_RFC3339), 'recipients' => $recipients];
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
