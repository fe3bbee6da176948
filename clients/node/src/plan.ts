/**
 * The planning core: whether a request is tried again, after which pause, and when `wait` looks again. Pure: no I/O, no
 * clock and no randomness; `random` (0 to 1) and the time are given by the caller.
 *
 * | outcome of an attempt                     | next                                      |
 * |-------------------------------------------|-------------------------------------------|
 * | lost (refused, reset, timed out)          | retry                                     |
 * | untrusted (certificate)                   | finish                                    |
 * | 429, 503, 409 `idempotency_in_progress`   | retry, unless Retry-After exceeds 30 s    |
 * | any other answer                          | finish                                    |
 *
 * A retry needs one left; "finish" hands the last outcome to the caller, as a result or as an error.
 */

const LONGEST_RETRY_AFTER = 30; // seconds; the caller decides about longer ones
const BACKOFF_FIRST = 500; // milliseconds
const BACKOFF_LONGEST = 8_000;
const POLL_FIRST = 500;
const POLL_GROWTH = 1.5;
const POLL_LONGEST = 10_000;

/** How an attempt ended. */
export type Outcome =
  | { readonly kind: "lost" }
  | { readonly kind: "untrusted" }
  | {
      readonly kind: "answer";
      readonly status: number;
      readonly code: string | null;
      readonly retryAfter: number | null;
    };

/** The retries of one request: made so far, and allowed. */
export interface Retries {
  readonly made: number;
  readonly allowed: number;
}

/** What to do after an attempt; the pause is in milliseconds. */
export type Step =
  { readonly kind: "finish" } | { readonly kind: "retry"; readonly pause: number; readonly retries: Retries };

const FINISH: Step = { kind: "finish" };

/** The step after an attempt with this outcome. */
export function nextStep(retries: Retries, outcome: Outcome, random: number): Step {
  if (retries.made >= retries.allowed || !isRetryable(outcome)) return FINISH;
  const retryAfter = outcome.kind === "answer" ? outcome.retryAfter : null;
  if (retryAfter !== null && retryAfter > LONGEST_RETRY_AFTER) return FINISH;
  const pause = retryAfter === null ? backoff(retries.made, random) : retryAfter * 1_000 * (1 + random / 10);
  return { kind: "retry", pause, retries: { made: retries.made + 1, allowed: retries.allowed } };
}

function isRetryable(outcome: Outcome): boolean {
  if (outcome.kind !== "answer") return outcome.kind === "lost";
  if (outcome.status === 409) return outcome.code === "idempotency_in_progress";
  return outcome.status === 429 || outcome.status === 503;
}

/** Full jitter: many clients that failed together do not come back together. */
function backoff(made: number, random: number): number {
  return random * Math.min(BACKOFF_LONGEST, BACKOFF_FIRST * 2 ** made);
}

/** Seconds by a Retry-After header, a number or an HTTP date (RFC 9110 5.6.7); null when it cannot be read. */
export function parseRetryAfter(header: string | null, now: number): number | null {
  const value = header?.trim() ?? "";
  if (/^\d{1,15}$/.test(value)) return Number(value);
  // Date.parse alone would take "1.5" for a day in January; a date without a zone is asctime's, in GMT.
  if (!/^[A-Z][a-z]{2,8},? /.test(value)) return null;
  const date = Date.parse(value.endsWith("GMT") ? value : `${value} GMT`);
  return Number.isNaN(date) ? null : Math.max(0, Math.ceil((date - now) / 1_000));
}

/** Whether a message's status does not change any more. */
export function isFinal(status: string | null): boolean {
  return status === "delivered" || status === "partial" || status === "failed";
}

/** Milliseconds before the next look at a message, or null at the end. `polls` counts the looks so far. */
export function pollPause(polls: number, elapsed: number, timeout: number): number | null {
  const left = timeout - elapsed;
  if (left <= 0) return null;
  return Math.min(left, POLL_LONGEST, POLL_FIRST * POLL_GROWTH ** (polls - 1));
}
