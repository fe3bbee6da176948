<?php

declare(strict_types=1);

namespace MailAppliance;

/** `invalid_request`: The request breaks a rule of the interface; the message names the field. */
final class InvalidRequest extends ApiError
{
}
