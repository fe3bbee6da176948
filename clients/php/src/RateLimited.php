<?php

declare(strict_types=1);

namespace MailAppliance;

/** `rate_limited`: Too many requests in a short time. */
final class RateLimited extends ApiError
{
}
