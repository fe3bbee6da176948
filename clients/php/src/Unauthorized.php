<?php

declare(strict_types=1);

namespace MailAppliance;

/** `unauthorized`: The credentials are missing, wrong, or not allowed to do this. */
final class Unauthorized extends ApiError
{
}
