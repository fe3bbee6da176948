<?php

declare(strict_types=1);

namespace MailAppliance;

/** `temporary_failure`: The appliance cannot store mail at the moment; nothing was accepted. */
final class TemporaryFailure extends ApiError
{
}
