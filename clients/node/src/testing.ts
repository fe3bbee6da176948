/**
 * For an application's tests: a client that records every send and answers from memory, with the sandbox's rules. It
 * is the real client on a fetch of its own: keys, attachments, errors and results are the real ones. The email itself
 * (addresses, sizes, the sender's domain) is judged only by an appliance, for example one in the sandbox.
 */

import { MailAppliance } from "./client.js";
import type { ErrorCode } from "./errors.js";
import { parseObject, type JsonObject } from "./models.js";
import type { FetchInit, FetchResponse } from "./transport.js";

/** An accepted email, as the JSON that was sent: with the interface's names and attachments in base64. */
export interface SentEmail {
  readonly id: string;
  readonly idempotencyKey: string;
  readonly email: JsonObject;
}

/** The status of each code, as the appliance answers it. */
const STATUSES: Readonly<Record<ErrorCode, number>> = {
  invalid_request: 400,
  unauthorized: 401,
  insufficient_credits: 402,
  forbidden: 403,
  account_suspended: 403,
  not_found: 404,
  conflict: 409,
  idempotency_conflict: 409,
  idempotency_in_progress: 409,
  payload_too_large: 413,
  rate_limited: 429,
  warmup_limited: 429,
  internal_error: 500,
  service_unavailable: 503,
  temporary_failure: 503,
};

const TIME = "2000-01-01T00:00:00Z"; // of every event: the fake has no clock

/** A client whose emails stay in `sent`. It does not retry, so that a failure shows at once. */
export class FakeMailAppliance extends MailAppliance {
  /** The accepted emails in their order; a repeated send with the same key is in it once. */
  readonly sent: readonly SentEmail[];
  readonly #failures: (ErrorCode | "connection")[];

  constructor() {
    const sent: SentEmail[] = [];
    const state: State = { sent, answers: new Map(), cancelled: new Set() };
    const failures: (ErrorCode | "connection")[] = [];
    super({
      baseUrl: "http://mail.invalid",
      token: "fake",
      retries: 0,
      fetch: async (url, init) => {
        const failure = failures.shift();
        if (failure === "connection") throw new TypeError("fetch failed");
        return failure ? errorAnswer(failure) : answer(state, url, init);
      },
    });
    this.sent = sent;
    this.#failures = failures;
  }

  /** Makes the next request fail with the error of this code, or with a lost connection. Called twice: the next two. */
  failNext(failure: ErrorCode | "connection"): void {
    this.#failures.push(failure);
  }
}

/** What the fake has accepted, answered by key, and cancelled by id. */
interface State {
  readonly sent: SentEmail[];
  readonly answers: Map<string, { readonly body: string; readonly answer: JsonObject }>;
  readonly cancelled: Set<string>;
}

function answer(state: State, url: string, { method, headers, body = "" }: FetchInit): FetchResponse {
  const [id, action] = new URL(url).pathname.split("/").slice(2);
  const idempotencyKey = headers["Idempotency-Key"];
  if (method === "GET" && action) return errorAnswer("invalid_request", 405);
  if (idempotencyKey === undefined) return answerAbout(state, id, method === "POST" ? action : method, body);
  const earlier = state.answers.get(idempotencyKey);
  if (earlier && earlier.body !== body) return errorAnswer("idempotency_conflict");
  if (earlier) return json(202, earlier.answer, { "Idempotent-Replayed": "true" });
  const content = parseObject(body) ?? {};
  const emails = id === "batch" ? (content["emails"] as JsonObject[]) : [content];
  const results = emails.map((email) => {
    const added = { id: `msg_fake${state.sent.length + 1}`, idempotencyKey, email };
    state.sent.push(added);
    return accepted(added);
  });
  const first = id === "batch" ? { results: results.map(batchItem), accepted: results.length, refused: 0 } : results[0];
  state.answers.set(idempotencyKey, { body, answer: first ?? {} });
  return json(202, first ?? {});
}

function answerAbout({ sent, cancelled }: State, id: string | undefined, action: string | undefined, body: string) {
  const found = sent.find((each) => each.id === id);
  if (!found) return errorAnswer("not_found");
  const email = found.email as Record<string, unknown>;
  if (action !== "GET" && (!("scheduled_at" in email) || cancelled.has(found.id))) return errorAnswer("conflict");
  if (action === "cancel") cancelled.add(found.id);
  if (action === "PATCH") email["scheduled_at"] = parseObject(body)?.["scheduled_at"];
  return json(200, messageOf(found, cancelled.has(found.id)));
}

function batchItem({ id, status, recipient_count, credits_reserved }: JsonObject, index: number): JsonObject {
  return { index, id, status, recipient_count, credits_reserved };
}

function accepted({ id, email }: SentEmail): JsonObject {
  const lists = { to: list(email["to"]), cc: list(email["cc"]), bcc: list(email["bcc"]), tags: list(email["tags"]) };
  const count = recipientsOf(email).length;
  const attachments = (Array.isArray(email["attachments"]) ? email["attachments"] : []).map(
    ({ content, ...rest }: { content: string }) => ({
      ...rest,
      size: Buffer.from(content, "base64").length,
    }),
  );
  const counts = { billing_status: "reserved", recipient_count: count, credits_reserved: count };
  return { ...email, ...lists, ...counts, attachments, id, status: "queued", source: "api", request_id: "req_fake" };
}

/**
 * Every recipient has its result at once, by the sandbox's rule for the local part. Recipients of a scheduled email
 * have no result until it is cancelled.
 */
function messageOf({ id, email }: SentEmail, isCancelled: boolean): JsonObject {
  const scheduled = "scheduled_at" in email ? { scheduled_at: email["scheduled_at"] } : null;
  const recipients = recipientsOf(email).map((address, index) => ({
    id: `rcp_fake${index + 1}`,
    email: address,
    ...(scheduled ? (isCancelled ? CANCELLED : SCHEDULED) : resultOf(address)),
  }));
  const delivered = recipients.filter(({ status }) => status === "delivered").length;
  const final = delivered === recipients.length ? "delivered" : delivered > 0 ? "partial" : "failed";
  const isWaiting = scheduled !== null && !isCancelled;
  const status = isWaiting ? "queued" : final;
  const released = recipients.every(({ billing_status }) => billing_status === "released");
  const counts = { recipient_count: recipients.length, credits_reserved: recipients.length };
  const about = {
    id,
    from: email["from"],
    subject: email["subject"],
    source: "api",
    created_at: TIME,
    request_id: "req_fake",
    metadata: email["metadata"],
    ...scheduled,
  };
  const billing_status = isWaiting ? "reserved" : released ? "released" : "settled";
  return { ...about, ...counts, status, billing_status, recipients };
}

const SCHEDULED = { status: "scheduled", billing_status: "reserved", attempt_count: 0 };
const CANCELLED = { status: "failed", billing_status: "released", attempt_count: 0, last_smtp_response: "cancelled" };

function resultOf(address: string): { status: string; billing_status: string } & JsonObject {
  if (address.startsWith("bounce")) {
    const reply = { last_smtp_code: 550, last_smtp_response: "550 5.1.1 user unknown" };
    return { status: "bounced", billing_status: "released", attempt_count: 1, bounced_at: TIME, ...reply };
  }
  if (address.startsWith("fail")) {
    const reply = { last_smtp_code: 451, last_smtp_response: "451 4.3.0 try again later" };
    return { status: "failed", billing_status: "settled", attempt_count: 12, ...reply };
  }
  const reply = { last_smtp_code: 250, last_smtp_response: "250 2.0.0 accepted" };
  return { status: "delivered", billing_status: "settled", attempt_count: 1, delivered_at: TIME, ...reply };
}

/** The unique addresses, without names. */
function recipientsOf(email: JsonObject): string[] {
  const all = [email["to"], email["cc"], email["bcc"]]
    .flatMap(list)
    .map((each) => /<([^<>]*)>$/.exec(each)?.[1] ?? each);
  return [...new Map(all.map((each) => [each.toLowerCase(), each])).values()];
}

function list(value: unknown): string[] {
  return (Array.isArray(value) ? value : [value]).filter((item): item is string => typeof item === "string");
}

function errorAnswer(code: ErrorCode, status = STATUSES[code]): FetchResponse {
  return json(status, { error: `the test asked for ${code}`, code, request_id: "req_fake" });
}

function json(status: number, body: JsonObject, headers: Record<string, string> = {}): FetchResponse {
  return new Response(JSON.stringify(body), { status, headers });
}
