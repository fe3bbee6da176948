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
        while (!isset($this->finished[$number])) {
            $this->advance(1.0);
        }
        $outcome = $this->finished[$number];
        unset($this->finished[$number]);

        return $outcome instanceof Response ? $outcome : throw $outcome;
    }

    public function start(Request $request): int
    {
        $transfer = new CurlTransfer(array_pop($this->idle) ?? curl_init(), $request, $this->caFile);
        curl_multi_add_handle($this->multi, $transfer->handle);
        $this->running[++$this->lastNumber] = $transfer;

        return $this->lastNumber;
    }

    public function poll(float $seconds): array
    {
        if ($this->finished === []) {
            $this->advance($seconds);
        }
        $finished = $this->finished;
        $this->finished = [];

        return $finished;
    }

    public function cancel(int $number): void
    {
        if (isset($this->running[$number])) {
            curl_multi_remove_handle($this->multi, $this->running[$number]->handle);
        }
        unset($this->running[$number], $this->finished[$number]);
    }

    /** Lets libcurl work until a request finishes, at most so many seconds. Every request ends by its own time-out. */
    private function advance(float $seconds): void
    {
        $end = hrtime(true) / 1e9 + $seconds;
        while (true) {
            if (curl_multi_exec($this->multi, $active) > \CURLM_OK) { // out of memory, or a fault of libcurl
                foreach ($this->running as $transfer) {
                    $this->finish($transfer->handle, \CURLE_FAILED_INIT);
                }
            }
            while ($done = curl_multi_info_read($this->multi)) {
                $this->finish($done['handle'], $done['result']);
            }
            $left = $end - hrtime(true) / 1e9;
            if ($this->finished !== [] || $this->running === [] || $left <= 0) {
                return;
            }
            if (curl_multi_select($this->multi, $left) === -1) {
                usleep(1000); // nothing to wait for yet, as while a name is being resolved
            }
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
