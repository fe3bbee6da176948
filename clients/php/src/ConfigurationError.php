<?php

declare(strict_types=1);

namespace MailAppliance;

/** A mistake of the caller, found before any request. */
final class ConfigurationError extends MailApplianceError
{
}
