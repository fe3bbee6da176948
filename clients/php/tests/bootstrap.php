<?php

declare(strict_types=1);

/** Loads the library, and the frameworks that are installed, from PHP's include path as Debian has it. */
require __DIR__ . '/autoload.php';

foreach ([
    'Symfony/Component/Mailer/autoload.php',
    'Symfony/Component/HttpClient/autoload.php',
    'Nyholm/Psr7/autoload.php',
    'Psr/Http/Client/autoload.php',
    'Dotenv/autoload.php',
    'Illuminate/Config/autoload.php',
    'Illuminate/Events/autoload.php',
    'Illuminate/View/autoload.php',
    'Illuminate/Mail/autoload.php',
] as $file) {
    if (stream_resolve_include_path($file) !== false) {
        require_once $file;
    }
}
