<?php

declare(strict_types=1);

namespace MailAppliance;

/** wait() ended before the message was final. */
final class WaitTimeout extends MailApplianceError
{
    /** @param Message $lastMessage the message as it was last seen */
    public function __construct(string $message, public readonly Message $lastMessage)
    {
        parent::__construct($message);
    }
}
