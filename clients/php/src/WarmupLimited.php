<?php

declare(strict_types=1);

namespace MailAppliance;

/** `warmup_limited`: The account's daily cap is reached. */
final class WarmupLimited extends ApiError
{
}
