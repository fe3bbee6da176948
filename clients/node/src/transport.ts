/**
 * One attempt of a request with fetch: the whole answer, or how it was lost. Nothing is retried here.
 *
 * fetch has no option for the time to connect, so the attempt watches undici, which is behind Node's fetch, through its
 * diagnostics channels: it is aborted when undici has taken the request and `connectTimeout` passes before the first
 * byte is written to a connection. A fetch that is not undici's tells nothing, and only `timeout` limits it.
 */

import { AsyncLocalStorage } from "node:async_hooks";
import { channel } from "node:diagnostics_channel";
import { setImmediate } from "node:timers/promises";

const LONGEST_ANSWER = 16 * 1024 * 1024; // bytes
// OpenSSL's verification errors as Node names them, and the check of the host's name.
const CERTIFICATE_PREFIX = /^(CERT|CRL|ERR_TLS_CERT|UNABLE_TO|SELF_SIGNED_CERT|DEPTH_ZERO_SELF_SIGNED|ERROR_IN_CERT)_/;
const CERTIFICATE_ERROR = /^(HOSTNAME_MISMATCH|INVALID_CA|INVALID_PURPOSE|PATH_LENGTH_EXCEEDED)$/;

/** The part of fetch that is used. `globalThis.fetch` is one. */
export type Fetch = (url: string, init: FetchInit) => Promise<FetchResponse>;

export interface FetchInit {
  method: "GET" | "PATCH" | "POST";
  headers: Record<string, string>;
  body?: string;
  redirect: "manual";
  signal: AbortSignal;
}

export interface FetchResponse {
  readonly status: number;
  readonly headers: { get(name: string): string | null };
  readonly body: FetchBody | null;
}

export interface FetchBody {
  getReader(): { read(): Promise<{ done: boolean; value?: Uint8Array | undefined }>; cancel(): Promise<void> };
}

/** A request; every attempt sends the same. */
export interface HttpRequest {
  readonly url: string;
  readonly method: "GET" | "PATCH" | "POST";
  readonly headers: Record<string, string>;
  readonly body?: string;
}

/** Limits of one attempt, in milliseconds. */
export interface Limits {
  readonly connectTimeout: number;
  readonly timeout: number;
}

/** How an attempt ended. */
export type Attempt =
  | {
      readonly kind: "answer";
      readonly status: number;
      readonly headers: { get(name: string): string | null };
      readonly text: string;
    }
  | { readonly kind: "lost" | "untrusted"; readonly error: unknown };

/** Makes one attempt. Throws only the reason of the caller's signal. */
export async function attempt(
  fetch: Fetch,
  request: HttpRequest,
  limits: Limits,
  signal: AbortSignal | undefined,
): Promise<Attempt> {
  const controller = new AbortController();
  const abort = (reason: unknown): void => controller.abort(reason);
  let timer: NodeJS.Timeout | undefined;
  const connecting = new ConnectTimer(limits.connectTimeout, abort);
  const forward = (): void => abort(signal?.reason);
  signal?.addEventListener("abort", forward, { once: true });
  try {
    signal?.throwIfAborted();
    const { url, ...init } = request;
    const exchange = connecting.watch(() =>
      answer(fetch(url, { ...init, redirect: "manual", signal: controller.signal })),
    );
    // Started after the call, in which Node loads undici the first time.
    timer = setTimeout(() => abort(new Error(`no whole answer within ${limits.timeout} ms`)), limits.timeout);
    // A fetch that does not heed its signal must not outlast it.
    return await Promise.race([exchange, rejection(controller.signal)]);
  } catch (error) {
    signal?.throwIfAborted();
    return failure(controller.signal.aborted ? controller.signal.reason : error);
  } finally {
    signal?.removeEventListener("abort", forward);
    clearTimeout(timer);
    connecting.stop();
  }
}

async function answer(fetched: Promise<FetchResponse>): Promise<Attempt> {
  const { status, headers, body } = await fetched;
  const text = body ? await readText(body) : "";
  // undici frees a connection in the event loop's turn after the body's end; sooner, the next request opens another.
  await setImmediate();
  return { kind: "answer", status, headers, text };
}

/** At most LONGEST_ANSWER bytes as text; the rest is not read. */
async function readText(body: FetchBody): Promise<string> {
  const reader = body.getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  while (size < LONGEST_ANSWER) {
    const { done, value } = await reader.read();
    if (done) return Buffer.concat(parts).toString();
    if (!value) continue;
    parts.push(value);
    size += value.byteLength;
  }
  await reader.cancel();
  return Buffer.concat(parts, LONGEST_ANSWER).toString();
}

/** A promise that is rejected when the signal is aborted. */
function rejection(signal: AbortSignal): Promise<never> {
  const promise = new Promise<never>((_resolve, reject) => {
    if (signal.aborted) reject(signal.reason);
    else signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  promise.catch(() => undefined);
  return promise;
}

/** fetch throws a TypeError whose cause, or its cause, is the network's or OpenSSL's error. */
function failure(error: unknown): Attempt {
  const codes = [error, cause(error), cause(cause(error))].map(code);
  const isCertificate = (name: string): boolean => CERTIFICATE_PREFIX.test(name) || CERTIFICATE_ERROR.test(name);
  return { kind: codes.some(isCertificate) ? "untrusted" : "lost", error };
}

function cause(error: unknown): unknown {
  return error instanceof Error ? error.cause : undefined;
}

function code(error: unknown): string {
  return error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : "";
}

/** Aborts an attempt whose connection is not made in time. */
class ConnectTimer {
  #timer: NodeJS.Timeout | undefined;

  constructor(
    readonly timeout: number,
    readonly abort: (reason: unknown) => void,
  ) {}

  /** Runs a function that calls fetch; undici's request of that call is recognised by the asynchronous context. */
  watch<T>(run: () => T): T {
    return current.run(this, run);
  }

  start(): void {
    this.stop();
    this.#timer = setTimeout(() => this.abort(new Error(`no connection within ${this.timeout} ms`)), this.timeout);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

const current = new AsyncLocalStorage<ConnectTimer>();
const timers = new WeakMap<object, ConnectTimer>();
// Constants of the module, because Node 18 may collect a channel that is not referenced, with its subscribers.
const created = channel("undici:request:create");
const connected = channel("undici:client:sendHeaders");

created.subscribe((message) => {
  const timer = current.getStore();
  if (!timer) return;
  timers.set((message as { request: object }).request, timer);
  timer.start();
});
connected.subscribe((message) => timers.get((message as { request: object }).request)?.stop());
