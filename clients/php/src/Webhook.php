<?php

declare(strict_types=1);

namespace MailAppliance;

/** Verifies the webhook requests that the appliance sends. */
final class Webhook
{
    /** The request header that has the signature; in PHP's superglobals `$_SERVER['HTTP_SERVICE_SIGNATURE']`. */
    public const HEADER = 'Service-Signature';

    private function __construct()
    {
    }

    /**
     * The event in a webhook request, if its signature is good.
     *
     * @param string              $body      the raw bytes of the request's body, never JSON that was encoded again
     * @param ?string             $header    the value of the Service-Signature header
     * @param string|list<string|false|null>|false|null $secrets the endpoint's secret, or several while it is being
     *                                                           rotated; getenv() can be passed as it is
     * @param int                 $tolerance seconds that the signature's time may differ from now, in either direction
     * @param ?int                $now       Unix seconds; the present time when not given
     *
     * @throws SignatureInvalid   when the request must not be trusted
     * @throws ConfigurationError when there is no secret, or an empty one
     */
    public static function verify(
        string $body,
        ?string $header,
        #[\SensitiveParameter] string|array|false|null $secrets,
        int $tolerance = 300,
        ?int $now = null,
    ): Event {
        $secrets = (array) $secrets;
        if ($secrets === [] || \in_array('', array_map(strval(...), $secrets), true)) {
            throw new ConfigurationError('secrets: a webhook secret is missing or empty. Pass the secret of your webhook.');
        }
        [$time, $signatures] = self::parse($header ?? '');
        if (!self::matches("{$time}.{$body}", $signatures, $secrets)) {
            throw new SignatureInvalid('no signature of the webhook matches');
        }
        if (abs(($now ?? time()) - (int) $time) > $tolerance) {
            throw new SignatureInvalid("the webhook's signature is more than {$tolerance} seconds old or ahead");
        }

        return self::event($body);
    }

    /** @return array{string, list<string>} the time as it was signed, and the v1 signatures */
    private static function parse(string $header): array
    {
        $times = $signatures = [];
        foreach (explode(',', $header) as $part) {
            [$name, $value] = explode('=', trim($part), 2) + [1 => ''];
            if ($name === 't') {
                $times[] = $value;
            } elseif ($name === 'v1') {
                $signatures[] = strtolower($value);
            }
        }
        if (\count($times) !== 1 || !preg_match('/^\d{1,15}$/D', $times[0]) || $signatures === []) {
            throw new SignatureInvalid('the webhook\'s signature header is missing or malformed');
        }

        return [$times[0], $signatures];
    }

    /**
     * Compares every signature with every secret, so that the time taken does not tell which one matched.
     *
     * @param list<string>  $signatures
     * @param array<string> $secrets
     */
    private static function matches(string $signed, array $signatures, array $secrets): bool
    {
        $matched = false;
        foreach ($secrets as $secret) {
            $expected = hash_hmac('sha256', $signed, $secret);
            foreach ($signatures as $signature) {
                $matched = hash_equals($expected, $signature) || $matched;
            }
        }

        return $matched;
    }

    private static function event(string $body): Event
    {
        $object = JsonObject::parse($body);
        $id = $object?->string('id');
        $type = $object?->string('type');
        $data = $object?->object('data');
        if ($object === null || $id === null || $type === null || $data === null) {
            throw new SignatureInvalid('the webhook\'s signature is good, but its body is not an event');
        }

        $received = $type === 'email.received' ? ReceivedEmail::fromObject($data) : null;

        return new Event($id, $type, $object->time('created_at'), EventData::fromObject($data), $received);
    }
}
