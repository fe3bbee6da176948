<?php

declare(strict_types=1);

namespace MailAppliance\Laravel;

use Illuminate\Mail\Transport\Transport;
use MailAppliance\ConfigurationError;
use MailAppliance\Mailer;
use MailAppliance\MailApplianceError;
use MailAppliance\MimeEmail;

/** The transport of Laravel 8, whose mailer is SwiftMailer; by the same rules as Symfony\MailApplianceTransport. */
final class SwiftTransport extends Transport
{
    /** What has a field of its own, and what SwiftMailer adds to every message. */
    private const OWN_HEADERS = ['from', 'sender', 'reply-to', 'to', 'cc', 'bcc', 'subject', 'date', 'message-id', 'mime-version', 'content-type', 'content-transfer-encoding'];
    private const PART_HEADERS = ['content-type', 'content-transfer-encoding', 'content-disposition', 'content-id'];

    public function __construct(private readonly Mailer $client)
    {
    }

    public function send(\Swift_Mime_SimpleMessage $message, &$failedRecipients = null): int
    {
        $this->beforeSendPerformed($message);
        try {
            $email = self::convert($message);
            $sent = $this->client->send($email->toArray(), idempotencyKey: $email->idempotencyKey());
        } catch (MailApplianceError $error) {
            throw new \Swift_TransportException("Unable to send by the mail appliance: {$error->getMessage()}", 0, $error);
        }
        $message->getHeaders()->addTextHeader('X-Message-ID', $sent->id);
        $this->sendPerformed($message);

        return $this->numberOfRecipients($message);
    }

    private static function convert(\Swift_Mime_SimpleMessage $message): MimeEmail
    {
        $email = new MimeEmail();
        $addresses = [
            'from' => $message->getFrom(),
            'reply_to' => $message->getReplyTo(),
            'to' => $message->getTo(),
            'cc' => $message->getCc(),
            'bcc' => $message->getBcc(),
        ];
        foreach ($addresses as $field => $names) {
            foreach ((array) $names as $address => $name) {
                $email->address($field, $address, $name);
            }
        }
        foreach ((array) $message->getSender() as $address => $name) {
            $email->sender($address);
        }
        if ($message->getSubject() !== null) {
            $email->subject($message->getSubject());
        }
        foreach ($message->getHeaders()->getAll() as $header) {
            if (!\in_array(strtolower($header->getFieldName()), self::OWN_HEADERS, true)) {
                $email->header($header->getFieldName(), $header instanceof \Swift_Mime_Headers_UnstructuredHeader ? $header->getValue() : $header->getFieldBody());
            }
        }
        if ($message->getBody() !== null) {
            self::takeText($email, $message->getBodyContentType(), $message->getBody(), $message->getCharset());
        }
        foreach ($message->getChildren() as $part) {
            self::takePart($email, $part);
        }

        return $email;
    }

    private static function takePart(MimeEmail $email, \Swift_Mime_SimpleMimeEntity $part): void
    {
        foreach ($part->getHeaders()->getAll() as $header) {
            if (!\in_array(strtolower($header->getFieldName()), self::PART_HEADERS, true)) {
                throw new ConfigurationError("a {$part->getContentType()} part of the message has the header {$header->getFieldName()}");
            }
        }
        if ($part instanceof \Swift_Mime_Attachment) {
            $email->attach($part->getBody(), $part->getFilename(), $part->getContentType(), $part->getDisposition() === 'inline' ? $part->getId() : null);
        } elseif ($part instanceof \Swift_Mime_MimePart && $part->getChildren() === []) {
            self::takeText($email, $part->getContentType(), $part->getBody(), $part->getCharset());
        } else {
            throw new ConfigurationError("the message has a {$part->getContentType()} part");
        }
    }

    private static function takeText(MimeEmail $email, string $type, string $content, ?string $charset): void
    {
        if (!str_starts_with($type, 'text/')) {
            throw new ConfigurationError("the message has a {$type} body");
        }
        $email->body(substr($type, 5), $content, $charset ?? 'utf-8');
    }
}
