<?php

declare(strict_types=1);

namespace MailAppliance;

/** `service_unavailable`: The appliance is starting or stopping. */
final class ServiceUnavailable extends ApiError
{
}
