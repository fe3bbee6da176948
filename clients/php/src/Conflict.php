<?php

declare(strict_types=1);

namespace MailAppliance;

/** `conflict`: The request contradicts the present state. */
final class Conflict extends ApiError
{
}
