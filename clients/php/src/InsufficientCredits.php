<?php

declare(strict_types=1);

namespace MailAppliance;

/** `insufficient_credits`: The account has fewer credits than the message has recipients. */
final class InsufficientCredits extends ApiError
{
}
