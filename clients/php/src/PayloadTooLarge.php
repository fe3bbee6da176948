<?php

declare(strict_types=1);

namespace MailAppliance;

/** `payload_too_large`: The message is larger than the appliance accepts. */
final class PayloadTooLarge extends ApiError
{
}
