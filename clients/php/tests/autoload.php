<?php

declare(strict_types=1);

/** Loads the library's classes without Composer. */
spl_autoload_register(static function (string $class): void {
    foreach (['MailAppliance\\Tests\\' => __DIR__ . '/', 'MailAppliance\\' => __DIR__ . '/../src/'] as $prefix => $folder) {
        $path = $folder . str_replace('\\', '/', substr($class, strlen($prefix))) . '.php';
        if (str_starts_with($class, $prefix) && is_file($path)) {
            require $path;

            return;
        }
    }
});
