<?php

declare(strict_types=1);

namespace MailAppliance;

/** Makes HTTP requests: the only part of the library that does network I/O. Give a client another one to replace it. */
interface Transport
{
    /**
     * Makes the request once, without following a redirect, and reads the answer, whatever its status.
     *
     * @throws TransportFailure when no whole answer came
     */
    public function send(Request $request): Response;
}
