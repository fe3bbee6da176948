<?php

declare(strict_types=1);

namespace MailAppliance;

/** A webhook request that must not be trusted. */
final class SignatureInvalid extends MailApplianceError
{
}
