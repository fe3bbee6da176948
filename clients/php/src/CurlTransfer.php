<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * One request on a curl handle, and the part of its answer that has arrived.
 *
 * @internal
 */
final class CurlTransfer
{
    /** @var array<string, string> */
    private array $headers = [];
    private string $body = '';
    private bool $cutOff = false;
    private ?int $connectsWhenSent = null;

    public function __construct(public readonly \CurlHandle $handle, Request $request, ?string $caFile)
    {
        $lines = ['Expect:']; // no pause for 100 Continue
        foreach ($request->headers + ['Content-Type' => null] as $name => $value) {
            $lines[] = rtrim("{$name}: {$value}"); // libcurl would add the type of a form; one without a value removes it
        }
        $options = [
            \CURLOPT_URL => $request->url,
            \CURLOPT_HTTPHEADER => $lines,
            \CURLOPT_HTTP_VERSION => \CURL_HTTP_VERSION_1_1,
            \CURLOPT_FOLLOWLOCATION => false,
            \CURLOPT_CONNECTTIMEOUT_MS => self::milliseconds($request->connectTimeout),
            \CURLOPT_TIMEOUT_MS => self::milliseconds($request->timeout),
            \CURLOPT_NOSIGNAL => true,
            \CURLOPT_SSL_VERIFYPEER => true,
            \CURLOPT_SSL_VERIFYHOST => 2,
            \CURLOPT_HEADERFUNCTION => $this->takeHeader(...),
            \CURLOPT_WRITEFUNCTION => $this->takeBody(...),
            \CURLOPT_NOPROGRESS => false,
            \CURLOPT_PROGRESSFUNCTION => $this->stopsHiddenRetry(...),
        ];
        if ($request->body !== null) {
            $options[\CURLOPT_CUSTOMREQUEST] = $request->method;
            $options[\CURLOPT_POSTFIELDS] = $request->body;
        }
        if ($caFile !== null) {
            $options[\CURLOPT_CAINFO] = $caFile;
        }
        curl_setopt_array($handle, $options);
    }

    /** @param list<int> $certificateErrors */
    public function outcome(int $error, array $certificateErrors): Response|TransportFailure
    {
        if ($error === \CURLE_OK || $this->cutOff) {
            return new Response(curl_getinfo($this->handle, \CURLINFO_RESPONSE_CODE), $this->headers, $this->body);
        }
        $reason = $error === \CURLE_ABORTED_BY_CALLBACK ? 'the kept connection was lost' : (curl_error($this->handle) ?: curl_strerror($error));

        return new TransportFailure("no whole answer from the appliance: {$reason}", !\in_array($error, $certificateErrors, true));
    }

    private static function milliseconds(float $seconds): int
    {
        return (int) min(max(1, ceil($seconds * 1000)), 0x7fffffff); // 0 would mean none; libcurl takes 31 bits
    }

    private function takeHeader(\CurlHandle $handle, string $line): int
    {
        if (str_starts_with($line, 'HTTP/')) {
            $this->headers = []; // what came before was an interim answer
        } elseif (str_contains($line, ':')) {
            [$name, $value] = explode(':', $line, 2);
            $this->headers[strtolower(trim($name))] ??= trim($value);
        }

        return \strlen($line);
    }

    private function takeBody(\CurlHandle $handle, string $bytes): int
    {
        $room = Response::MAX_BODY - \strlen($this->body);
        $this->cutOff = \strlen($bytes) > $room;
        $this->body .= $this->cutOff ? substr($bytes, 0, $room) : $bytes;

        return $this->cutOff ? 0 : \strlen($bytes); // anything but the length ends the transfer
    }

    /**
     * libcurl itself repeats a request, unseen, when a kept connection ends before any byte of the answer.
     * This class aborts such a repetition as soon as it reconnects, so that only RetryPlan decides about retries.
     */
    private function stopsHiddenRetry(\CurlHandle $handle): int
    {
        if (curl_getinfo($handle, \CURLINFO_REQUEST_SIZE) === 0) {
            return 0;
        }
        $connects = curl_getinfo($handle, \CURLINFO_NUM_CONNECTS);
        $this->connectsWhenSent ??= $connects;

        return (int) ($connects > $this->connectsWhenSent);
    }
}
