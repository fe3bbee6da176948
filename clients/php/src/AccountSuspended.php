<?php

declare(strict_types=1);

namespace MailAppliance;

/** `account_suspended`: The account is suspended. */
final class AccountSuspended extends ApiError
{
}
