<?php

declare(strict_types=1);

namespace MailAppliance\Laravel;

use Illuminate\Contracts\Container\Container;
use Illuminate\Contracts\Foundation\Application;
use Illuminate\Mail\MailManager;
use Illuminate\Support\ServiceProvider;
use MailAppliance\Client;
use MailAppliance\Mailer;
use MailAppliance\Symfony\MailApplianceTransport;

/**
 * Makes `MAIL_MAILER=mail-appliance` work, with the settings of config/mail-appliance.php, and binds
 * MailAppliance\Mailer to the client. A mailer in config/mail.php may have settings of its own:
 *
 *     'mailers' => ['receipts' => ['transport' => 'mail-appliance', 'client' => ['url' => '…', 'token' => '…']]]
 */
final class MailApplianceServiceProvider extends ServiceProvider
{
    private const CONFIG = __DIR__ . '/../../config/mail-appliance.php';
    private const SETTINGS = [
        'url' => 'url',
        'token' => 'token',
        'username' => 'username',
        'password' => 'password',
        'retries' => 'retries',
        'connect_timeout' => 'connectTimeout',
        'timeout' => 'timeout',
    ];

    public function register(): void
    {
        $this->mergeConfigFrom(self::CONFIG, 'mail-appliance');
        $config = $this->app->make('config');
        if ($config->get('mail.mailers.mail-appliance') === null) {
            $config->set('mail.mailers.mail-appliance', ['transport' => 'mail-appliance']);
        }
        $this->app->singleton(Mailer::class, static fn (Container $app): Mailer => self::client($app->make('config')->get('mail-appliance')));
    }

    public function boot(): void
    {
        if ($this->app instanceof Application && $this->app->runningInConsole()) {
            $this->publishes([self::CONFIG => $this->app->configPath('mail-appliance.php')], 'mail-appliance-config');
        }
        $this->callAfterResolving('mail.manager', function (MailManager $manager): void {
            $manager->extend('mail-appliance', $this->transport(...));
        });
    }

    /** @param array<string, mixed> $mailer the mailer's own configuration */
    private function transport(array $mailer): MailApplianceTransport|SwiftTransport
    {
        $client = isset($mailer['client']) ? self::client($mailer['client']) : $this->app->make(Mailer::class);

        // Laravel 8, the last on SwiftMailer, has no createSymfonyTransport().
        return method_exists(MailManager::class, 'createSymfonyTransport') ? new MailApplianceTransport($client) : new SwiftTransport($client);
    }

    /** @param array<string, mixed> $settings */
    private static function client(array $settings): Client
    {
        $arguments = [];
        foreach (self::SETTINGS as $setting => $argument) {
            if (isset($settings[$setting])) {
                $arguments[$argument] = $settings[$setting];
            }
        }

        return new Client(...$arguments);
    }
}
