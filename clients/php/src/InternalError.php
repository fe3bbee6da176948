<?php

declare(strict_types=1);

namespace MailAppliance;

/** `internal_error`: The appliance failed; its log has the cause under the request id. */
final class InternalError extends ApiError
{
}
