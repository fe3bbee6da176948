<?php

declare(strict_types=1);

namespace MailAppliance;

/** `not_found`: There is no such message in this account. */
final class NotFound extends ApiError
{
}
