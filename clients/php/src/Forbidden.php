<?php

declare(strict_types=1);

namespace MailAppliance;

/** `forbidden`: The account may not send from this domain. */
final class Forbidden extends ApiError
{
}
