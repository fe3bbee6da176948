<?php

declare(strict_types=1);

namespace MailAppliance;

/** No whole answer came, after the last retry: refused, reset, lost, timed out, or a certificate that does not verify. */
final class ConnectionFailed extends MailApplianceError
{
}
