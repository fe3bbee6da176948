/** The client: `send`, `get` and `wait`. It carries out what plan.ts decides, with the attempts of transport.ts. */

import { randomUUID } from "node:crypto";
import { setTimeout } from "node:timers/promises";

import { settings, type MailApplianceOptions, type Settings } from "./configuration.js";
import { encodeBatch, encodeEmail, timeText, type SendContext } from "./email.js";
import {
  apiError,
  ConfigurationError,
  ConnectionFailed,
  NotFound,
  NotSupported,
  WaitTimeout,
  ApiError,
  type MailApplianceError,
} from "./errors.js";
import {
  batchResult,
  message,
  parseObject,
  sendResult,
  string,
  type BatchResult,
  type Email,
  type JsonObject,
  type Message,
  type SendResult,
} from "./models.js";
import { isFinal, nextStep, parseRetryAfter, pollPause, type Outcome, type Retries } from "./plan.js";
import { attempt, type Attempt, type Fetch, type HttpRequest } from "./transport.js";
import { VERSION } from "./version.js";

const USER_AGENT = `mail-appliance-node/${VERSION} node/${process.versions.node}`;
const BATCH_SINCE = "0.7"; // version of the server that added batches, cancel and reschedule
const EXCERPT = 200; // characters shown of an answer that is not an error object

export interface CallOptions {
  /** Ends the call, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

export interface SendOptions extends CallOptions {
  /** 1 to 255 printable ASCII characters; by default `auto_` and a random UUID. */
  idempotencyKey?: string | undefined;
}

export interface BatchOptions extends SendOptions {
  /** `reject` (the default): one email that cannot be sent refuses the batch. `skip`: the others are accepted. */
  onError?: "reject" | "skip" | undefined;
}

export interface WaitOptions extends CallOptions {
  /** Milliseconds; 60000. */
  timeout?: number | undefined;
}

type Answer = Extract<Attempt, { kind: "answer" }>;

/** A client of one appliance. One can serve the whole program: it keeps no state between calls. */
export class MailAppliance {
  readonly #settings: Settings;
  readonly #fetch: Fetch | undefined;

  constructor(options: MailApplianceOptions = {}) {
    this.#settings = settings(options, process.env);
    this.#fetch = options.fetch;
  }

  /** Sends an email. All attempts have the same key, so that the appliance accepts the email at most once. */
  async send(email: Email, options: SendOptions = {}): Promise<SendResult> {
    return this.#post("/emails", options, (context) => encodeEmail(email, context), sendResult);
  }

  /**
   * Sends up to 100 emails in one request with one key. InvalidRequest names the email that refuses the batch, as in
   * `emails[3].to: …`; with `onError: "skip"` the result says which were not accepted.
   */
  async sendBatch(emails: readonly Email[], { onError, ...options }: BatchOptions = {}): Promise<BatchResult> {
    const encode = (context: SendContext): Promise<string> => encodeBatch(emails, onError, context);
    return supported("POST /emails/batch", [404, 405], () =>
      this.#post("/emails/batch", options, encode, batchResult),
    );
  }

  /** The message with the state of its recipients. */
  async get(id: string, { signal }: CallOptions = {}): Promise<Message> {
    return resultOf(await this.#request("GET", pathOf(id), { key: null, signal }), null, message);
  }

  /**
   * Cancels what is still queued or scheduled of a message; Conflict if nothing is. If the answer to a first attempt
   * was lost, Conflict can mean that this attempt succeeded: `get` shows it.
   */
  async cancel(id: string, { signal }: CallOptions = {}): Promise<Message> {
    const path = `${pathOf(id)}/cancel`;
    try {
      return resultOf(await this.#request("POST", path, { key: null, signal }), null, message);
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
      // An older server and an unknown id both are 404. A GET tells them apart: 405 only where the path has a route.
      const route = supported(`POST ${path}`, [404], () => this.#request("GET", path, { key: null, signal }));
      await route.catch((reason: unknown) => {
        if (!(reason instanceof ApiError && reason.status === 405)) throw reason;
      });
      throw error;
    }
  }

  /** Moves a scheduled message to another time; Conflict once it is due. */
  async reschedule(id: string, scheduledAt: Date | string, { signal }: CallOptions = {}): Promise<Message> {
    const path = pathOf(id);
    const body = JSON.stringify({ scheduled_at: validTime(scheduledAt) });
    const headers = { "Content-Type": "application/json" };
    const answer = supported(`PATCH ${path}`, [405], () =>
      this.#request("PATCH", path, { headers, body, key: null, signal }),
    );
    return resultOf(await answer, null, message);
  }

  /** The message once its status is `delivered`, `partial` or `failed`; WaitTimeout if it is not by the end. */
  async wait(id: string, { timeout = 60_000, signal }: WaitOptions = {}): Promise<Message> {
    if (!(timeout >= 0)) throw new ConfigurationError("timeout must be a number of milliseconds, 0 or more");
    const start = performance.now();
    for (let polls = 1; ; polls++) {
      const seen = await this.get(id, { signal });
      if (isFinal(seen.status)) return seen;
      const pause = pollPause(polls, performance.now() - start, timeout);
      if (pause === null) throw new WaitTimeout(`message ${id} is ${seen.status} after ${timeout} ms`, seen);
      await sleep(pause, signal);
    }
  }

  /** Sends a body with an idempotency key, made if the caller gives none. */
  async #post<T>(
    path: string,
    { idempotencyKey, signal }: SendOptions,
    encode: (context: SendContext) => Promise<string>,
    read: (fields: JsonObject, key: string, replayed: boolean) => T | null,
  ): Promise<T> {
    const key = idempotencyKey ?? `auto_${randomUUID()}`;
    if (!/^[!-~](?:[ -~]{0,253}[!-~])?$/.test(key)) {
      const rule = "idempotencyKey must be 1 to 255 printable ASCII characters without a space at either end";
      throw new ConfigurationError(rule, { idempotencyKey: key });
    }
    const body = await encode({ idempotencyKey: key, signal });
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
    const answer = await this.#request("POST", path, { headers, body, key, signal });
    const replayed = answer.headers.get("Idempotent-Replayed") === "true";
    return resultOf(answer, key, (fields) => read(fields, key, replayed));
  }

  /** The answer with a status 2xx, after as many attempts as planned. */
  async #request(
    method: HttpRequest["method"],
    path: string,
    { headers, body, key, signal }: RequestParts,
  ): Promise<Answer> {
    const { baseUrl, authorization, retries: allowed } = this.#settings;
    const common = { Authorization: authorization, Accept: "application/json", "User-Agent": USER_AGENT };
    const request = {
      method,
      url: baseUrl + path,
      headers: { ...common, ...headers },
      ...(body === undefined ? {} : { body }),
    };
    let retries: Retries = { made: 0, allowed };
    for (;;) {
      const attempted = await attempt(this.#fetch ?? globalThis.fetch, request, this.#settings, signal);
      if (attempted.kind === "answer" && attempted.status >= 200 && attempted.status < 300) return attempted;
      const { outcome, error } = failureOf(attempted, key);
      const step = nextStep(retries, outcome, Math.random());
      if (step.kind === "finish") throw error;
      await sleep(step.pause, signal);
      retries = step.retries;
    }
  }
}

interface RequestParts {
  readonly headers?: Record<string, string>;
  readonly body?: string;
  readonly key: string | null;
  readonly signal: AbortSignal | undefined;
}

function pathOf(id: string): string {
  // A URL cannot hold the two dots, encoded or not: fetch would ask for another path.
  if (!id || id === "." || id === "..") throw new ConfigurationError("id must be a message's id, not empty or dots");
  return `/emails/${encodeURIComponent(id)}`;
}

function validTime(time: Date | string): string {
  try {
    return timeText(time);
  } catch (cause) {
    throw new ConfigurationError("scheduledAt is not a valid Date", { cause });
  }
}

/** What a call to this route returns; NotSupported if its error is one by which an older server refuses the route. */
async function supported<T>(route: string, missing: readonly number[], call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    if (!(error instanceof ApiError) || error.code === null || !missing.includes(error.status)) throw error;
    throw new NotSupported(
      `the server does not have ${route}: it is older than version ${BATCH_SINCE}. Upgrade the server.`,
      error,
    );
  }
}

/** A failed attempt, as the plan sees it, and the error to throw if it is the last. */
function failureOf(attempted: Attempt, key: string | null): { outcome: Outcome; error: MailApplianceError } {
  if (attempted.kind === "answer") {
    const error = answerError(attempted, key);
    return { outcome: { kind: "answer", status: error.status, code: error.code, retryAfter: error.retryAfter }, error };
  }
  const { kind, error: cause } = attempted;
  return { outcome: { kind }, error: new ConnectionFailed(describe(cause), { idempotencyKey: key, cause }) };
}

/** The text of fetch's error with that of its cause: "fetch failed" alone says nothing. */
function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  if (!(cause instanceof Error)) return error.message;
  return `${error.message}: ${cause.message || ("code" in cause ? String(cause.code) : cause.name)}`;
}

function answerError(answer: Answer, key: string | null): ApiError {
  const fields = parseObject(answer.text);
  const code = fields && string(fields["code"]);
  const text = fields && string(fields["error"]);
  const isErrorObject = code !== null && text !== null;
  return apiError(isErrorObject ? text : `HTTP status ${answer.status}: ${answer.text.slice(0, EXCERPT)}`, {
    status: answer.status,
    code: isErrorObject ? code : null,
    requestId: (fields && string(fields["request_id"])) ?? answer.headers.get("X-Request-ID"),
    retryAfter: parseRetryAfter(answer.headers.get("Retry-After"), Date.now()),
    idempotencyKey: key,
  });
}

/** The result in a successful answer; one that cannot be read is an ApiError. */
function resultOf<T>(answer: Answer, key: string | null, read: (fields: JsonObject) => T | null): T {
  const fields = parseObject(answer.text);
  const result = fields && read(fields);
  if (result === null) throw answerError(answer, key);
  return result;
}

async function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await setTimeout(milliseconds, undefined, signal ? { signal } : {});
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}
