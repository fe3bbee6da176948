<?php

declare(strict_types=1);

namespace MailAppliance\Symfony;

use MailAppliance\ConfigurationError;
use MailAppliance\Mailer;
use MailAppliance\MailApplianceError;
use MailAppliance\MimeEmail;
use Psr\EventDispatcher\EventDispatcherInterface;
use Psr\Log\LoggerInterface;
use Symfony\Component\Mailer\Envelope;
use Symfony\Component\Mailer\Exception\TransportException;
use Symfony\Component\Mailer\Header\MetadataHeader;
use Symfony\Component\Mailer\Header\TagHeader;
use Symfony\Component\Mailer\SentMessage;
use Symfony\Component\Mailer\Transport\AbstractTransport;
use Symfony\Component\Mime\Header\HeaderInterface;
use Symfony\Component\Mime\Header\MailboxHeader;
use Symfony\Component\Mime\Header\MailboxListHeader;
use Symfony\Component\Mime\Header\UnstructuredHeader;
use Symfony\Component\Mime\Message;
use Symfony\Component\Mime\Part\AbstractPart;
use Symfony\Component\Mime\Part\DataPart;
use Symfony\Component\Mime\Part\Multipart\AlternativePart;
use Symfony\Component\Mime\Part\Multipart\MixedPart;
use Symfony\Component\Mime\Part\Multipart\RelatedPart;
use Symfony\Component\Mime\Part\TextPart;

/**
 * The transport of Symfony Mailer. An `Idempotency-Key` header of the message becomes the key of the send;
 * what the interface's JSON cannot carry is refused by a TransportException that names it.
 */
final class MailApplianceTransport extends AbstractTransport
{
    private const ADDRESS_FIELDS = ['from' => 'from', 'to' => 'to', 'cc' => 'cc', 'bcc' => 'bcc', 'reply-to' => 'reply_to'];
    private const PART_HEADERS = ['content-type', 'content-transfer-encoding', 'content-disposition', 'content-id'];

    public function __construct(
        private readonly Mailer $client,
        ?EventDispatcherInterface $dispatcher = null,
        ?LoggerInterface $logger = null,
    ) {
        parent::__construct($dispatcher, $logger);
    }

    public function __toString(): string
    {
        return 'mail-appliance';
    }

    protected function doSend(SentMessage $message): void
    {
        try {
            $email = self::convert($message);
            $sent = $this->client->send($email->toArray(), idempotencyKey: $email->idempotencyKey());
        } catch (MailApplianceError $error) {
            throw new TransportException("Unable to send by the mail appliance: {$error->getMessage()}", 0, $error);
        }
        $message->setMessageId($sent->id);
    }

    private static function convert(SentMessage $sent): MimeEmail
    {
        $message = $sent->getOriginalMessage();
        if (!$message instanceof Message) {
            throw new ConfigurationError('the message is raw');
        }
        $email = new MimeEmail();
        foreach ($message->getHeaders()->all() as $header) {
            self::takeHeader($email, $header);
        }
        self::takeEnvelope($email, $sent->getEnvelope());
        $body = $message->getBody();
        if ($body !== null) {
            self::takePart($email, $body);
        }

        return $email;
    }

    private static function takeHeader(MimeEmail $email, HeaderInterface $header): void
    {
        $name = strtolower($header->getName());
        if ($header instanceof MailboxListHeader && isset(self::ADDRESS_FIELDS[$name])) {
            foreach ($header->getAddresses() as $address) {
                $email->address(self::ADDRESS_FIELDS[$name], $address->getAddress(), $address->getName());
            }
        } elseif ($name === 'sender' && $header instanceof MailboxHeader) {
            $email->sender($header->getAddress()->getAddress());
        } elseif ($name === 'subject' && $header instanceof UnstructuredHeader) {
            $email->subject($header->getValue());
        } elseif ($header instanceof TagHeader) {
            $email->tag($header->getValue());
        } elseif ($header instanceof MetadataHeader) {
            $email->metadata($header->getKey(), $header->getValue());
        } else {
            $email->header($header->getName(), $header instanceof UnstructuredHeader ? $header->getValue() : $header->getBodyAsString());
        }
    }

    private static function takeEnvelope(MimeEmail $email, Envelope $envelope): void
    {
        $recipients = array_map(static fn ($address): string => $address->getAddress(), $envelope->getRecipients());
        $email->envelope($envelope->getSender()->getAddress(), array_values($recipients));
    }

    private static function takePart(MimeEmail $email, AbstractPart $part): void
    {
        $type = "{$part->getMediaType()}/{$part->getMediaSubtype()}";
        $headers = $part->getPreparedHeaders();
        foreach ($headers->all() as $header) {
            if (!\in_array(strtolower($header->getName()), self::PART_HEADERS, true)) {
                throw new ConfigurationError("a {$type} part of the message has the header {$header->getName()}");
            }
        }
        if ($part instanceof AlternativePart || $part instanceof MixedPart || $part instanceof RelatedPart) {
            foreach ($part->getParts() as $inner) {
                self::takePart($email, $inner);
            }
        } elseif ($part instanceof DataPart) {
            $inline = $part->hasContentId() || $headers->getHeaderBody('Content-Disposition') === 'inline';
            $name = $headers->getHeaderParameter('Content-Disposition', 'filename') ?? $headers->getHeaderParameter('Content-Disposition', 'name');
            $email->attach($part->getBody(), $name, $type, $inline ? $part->getContentId() : null);
        } elseif ($part instanceof TextPart && $part->getMediaType() === 'text') {
            $email->body($part->getMediaSubtype(), $part->getBody(), $headers->getHeaderParameter('Content-Type', 'charset') ?? 'utf-8');
        } else {
            throw new ConfigurationError("the message has a {$type} part");
        }
    }
}
