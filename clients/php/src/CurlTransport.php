<?php

declare(strict_types=1);

namespace MailAppliance;

/**
 * The default transport, on ext-curl. All requests go through one curl_multi handle, which keeps the connections
 * open and reuses them, for single sends and for those of sendAll() alike.
 */
final class CurlTransport implements ParallelTransport
{
    private const MAX_KEPT_CONNECTIONS = 16;

    /**
     * libcurl's errors of certificates, keys and trust stores. CURLE_SSL_CONNECT_ERROR (35) is not among them:
     * it is also what a connection lost during the handshake gives.
     */
    private const CERTIFICATE_ERRORS = [51, 53, 54, 58, 59, 60, 66, 77, 80, 82, 83, 90, 91];

    private readonly \CurlMultiHandle $multi;

    /** @var list<\CurlHandle> handles without a request, to be used again */
    private array $idle = [];

    /** @var array<int, CurlTransfer> by number */
    private array $running = [];

    /** @var array<int, Response|TransportFailure> by number: finished, and not yet fetched by poll() */
    private array $finished = [];

    private int $lastNumber = 0;

    /** @param ?string $caFile PEM certificates to trust instead of the system's, for an appliance with a private CA */
    public function __construct(private readonly ?string $caFile = null)
    {
        $this->multi = curl_multi_init();
        curl_multi_setopt($this->multi, \CURLMOPT_MAXCONNECTS, self::MAX_KEPT_CONNECTIONS);
    }

    public function send(Request $request): Response
    {
        $number = $this->start($request);
        do {
            $finished = $this->poll([$number], 1.0);
        } while ($finished === []); // the request ends by its own time-out

        return $finished[$number] instanceof Response ? $finished[$number] : throw $finished[$number];
    }

    public function start(Request $request): int
    {
        $transfer = new CurlTransfer(array_pop($this->idle) ?? curl_init(), $request, $this->caFile);
        curl_multi_add_handle($this->multi, $transfer->handle);
        $this->running[++$this->lastNumber] = $transfer;

        return $this->lastNumber;
    }

    public function poll(array $numbers, float $seconds): array
    {
        $wanted = array_flip($numbers);
        $end = hrtime(true) / 1e9 + $seconds;
        $this->work();
        while (($finished = array_intersect_key($this->finished, $wanted)) === [] && ($left = $end - hrtime(true) / 1e9) > 0) {
            if (curl_multi_select($this->multi, $left) < 1) {
                usleep(1000); // libcurl does not wait when it has no socket yet
            }
            $this->work();
        }
        $this->finished = array_diff_key($this->finished, $finished);

        return $finished;
    }

    public function cancel(int $number): void
    {
        if (isset($this->running[$number])) {
            curl_multi_remove_handle($this->multi, $this->running[$number]->handle);
        }
        unset($this->running[$number], $this->finished[$number]);
    }

    /** Lets libcurl do what it can without waiting. */
    private function work(): void
    {
        if (curl_multi_exec($this->multi, $active) > \CURLM_OK) { // out of memory, or a fault of libcurl
            foreach ($this->running as $transfer) {
                $this->finish($transfer->handle, \CURLE_FAILED_INIT);
            }
        }
        while ($done = curl_multi_info_read($this->multi)) {
            $this->finish($done['handle'], $done['result']);
        }
    }

    private function finish(\CurlHandle $handle, int $error): void
    {
        foreach ($this->running as $number => $transfer) {
            if ($transfer->handle === $handle) {
                $this->finished[$number] = $transfer->outcome($error, self::CERTIFICATE_ERRORS);
                curl_multi_remove_handle($this->multi, $handle);
                unset($this->running[$number]);
                curl_reset($handle);
                $this->idle[] = $handle;
            }
        }
    }
}
