<?php

declare(strict_types=1);

namespace MailAppliance\Tests;

use MailAppliance\Client;
use PHPUnit\Framework\TestCase;

final class PackageTest extends TestCase
{
    /** The version is the same everywhere. */
    public function testVersion(): void
    {
        $version = trim(file_get_contents(__DIR__ . '/../../VERSION'));
        self::assertSame($version, Client::VERSION);
        // Composer takes the version from the tag, and a field that differs from it breaks the release.
        self::assertArrayNotHasKey('version', json_decode(file_get_contents(__DIR__ . '/../composer.json'), true));
    }

    /** Every file is strict and has the class that its path says, so that Composer's PSR-4 finds it. */
    public function testFiles(): void
    {
        $files = new \RegexIterator(new \RecursiveIteratorIterator(new \RecursiveDirectoryIterator(__DIR__ . '/../src')), '/\.php$/');
        foreach ($files as $file) {
            $text = file_get_contents($file->getPathname());
            $folder = trim(str_replace('/', '\\', substr($file->getPath(), \strlen(__DIR__ . '/../src'))), '\\');
            self::assertStringStartsWith("<?php\n\ndeclare(strict_types=1);\n\nnamespace " . rtrim("MailAppliance\\{$folder}", '\\') . ";\n", $text, $file->getPathname());
            self::assertMatchesRegularExpression('/^(final |abstract )?(class|interface) ' . $file->getBasename('.php') . '\b/m', $text);
        }
    }
}
