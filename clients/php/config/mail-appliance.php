<?php

declare(strict_types=1);

// Where the appliance is, and either a token (an API key) or the username and password of an SMTP credential.
return [
    'url' => env('MAIL_APPLIANCE_URL'),
    'token' => env('MAIL_APPLIANCE_TOKEN'),
    'username' => env('MAIL_APPLIANCE_USERNAME'),
    'password' => env('MAIL_APPLIANCE_PASSWORD'),
    'retries' => 3,
    'connect_timeout' => 5.0, // seconds
    'timeout' => 30.0, // seconds for one attempt
];
