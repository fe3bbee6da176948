import assert from "node:assert/strict";
import { test } from "node:test";

import { isFinal, nextStep, parseRetryAfter, pollPause } from "../dist/plan.js";

const FRESH = { made: 0, allowed: 3 };
const FINISH = { kind: "finish" };
const answer = (status, code = null, retryAfter = null) => ({ kind: "answer", status, code, retryAfter });
const pauseAfter = (outcome, made, random) => nextStep({ made, allowed: 100 }, outcome, random).pause;

test("only lost connections, 429, 503 and a send in progress are tried again", () => {
  for (const outcome of [
    { kind: "lost" },
    answer(429, "rate_limited"),
    answer(503),
    answer(409, "idempotency_in_progress"),
  ]) {
    assert.deepEqual(nextStep(FRESH, outcome, 0), { kind: "retry", pause: 0, retries: { made: 1, allowed: 3 } });
  }
  const final = [301, 400, 401, 402, 403, 404, 413, 500, 502, 504].map((status) =>
    answer(status, "idempotency_in_progress"),
  );
  for (const outcome of [{ kind: "untrusted" }, answer(409, "idempotency_conflict"), answer(409), ...final]) {
    assert.deepEqual(nextStep(FRESH, outcome, 0), FINISH);
  }
});

test("a request ends when its retries are used up", () => {
  assert.deepEqual(nextStep({ made: 3, allowed: 3 }, { kind: "lost" }, 0), FINISH);
  assert.deepEqual(nextStep({ made: 0, allowed: 0 }, answer(503), 0), FINISH);
  assert.equal(nextStep({ made: 2, allowed: 3 }, { kind: "lost" }, 0).retries.made, 3);
});

test("without Retry-After the pause is random below a bound that doubles up to 8 s", () => {
  const bounds = [0, 1, 2, 3, 4, 5, 50].map((made) => pauseAfter({ kind: "lost" }, made, 1));
  assert.deepEqual(bounds, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
  assert.equal(pauseAfter(answer(503), 1, 0.25), 250);
  assert.equal(pauseAfter({ kind: "lost" }, 3, 0), 0);
});

test("Retry-After gets up to 10 % more; above 30 s the caller decides", () => {
  assert.equal(pauseAfter(answer(429, null, 2), 0, 0), 2000);
  assert.equal(pauseAfter(answer(429, null, 2), 5, 1), 2200);
  assert.equal(pauseAfter(answer(503, null, 30), 0, 0.5), 31500);
  assert.equal(pauseAfter(answer(503, null, 0), 2, 1), 0);
  assert.deepEqual(nextStep(FRESH, answer(429, null, 31), 0), FINISH);
});

test("Retry-After is read as seconds or as an HTTP date", () => {
  const now = Date.UTC(1994, 10, 6, 8, 49, 0);
  const read = (value) => parseRetryAfter(value, now);
  assert.deepEqual(["0", "120", " 7 "].map(read), [0, 120, 7]);
  const dates = ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"];
  assert.deepEqual(dates.map(read), [37, 37, 37]);
  assert.equal(read("Sun, 06 Nov 1994 08:00:00 GMT"), 0);
  for (const unreadable of [null, "", "soon", "1.5", "-1", "1e3", "Sun, 99 Foo 1994 08:49:37 GMT", "9".repeat(400)]) {
    assert.equal(read(unreadable), null, String(unreadable));
  }
});

test("polling pauses grow from 0.5 s by half to 10 s and never pass the end", () => {
  const pauses = [1, 2, 3, 8, 9, 100].map((polls) => pollPause(polls, 0, 60_000));
  assert.deepEqual(pauses, [500, 750, 1125, 8542.96875, 10_000, 10_000]);
  assert.equal(pollPause(5, 59_900, 60_000), 100);
  assert.equal(pollPause(1, 60_000, 60_000), null);
  assert.equal(pollPause(1, 0, 0), null);
});

test("delivered, partial and failed are final", () => {
  const statuses = ["delivered", "partial", "failed", "queued", "paused", null];
  assert.deepEqual(statuses.map(isFinal), [true, true, true, false, false, false]);
});
