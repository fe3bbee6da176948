import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { before, mock, test } from "node:test";
import { pathToFileURL } from "node:url";

import * as library from "mail-appliance";

import { ACCEPTED, EMAIL, error, json, reset, serve } from "./server.mjs";

const { ApiError, ConfigurationError, ConnectionFailed, MailAppliance, MailApplianceError } = library;
const AUTOMATIC_KEY = /^auto_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const client = (server, options = {}) =>
  new MailAppliance({ baseUrl: server.url, username: "ada", password: "secret", ...options });

// Pauses without Retry-After are random * bound; their length is tested in plan.test.mjs.
before(() => mock.method(Math, "random", () => 0));

test("send posts the email as JSON and returns the accepted message", async (t) => {
  const answer = {
    ...ACCEPTED,
    to: ["ada@example.net"],
    recipient_count: 1,
    billing_status: "donated",
    status: "scheduled",
    extra: {},
  };
  const server = await serve(t, [
    json(202, { ...answer, attachments: [{ filename: "a.txt", size: 2, checksum: "x" }] }),
  ]);
  const email = { ...EMAIL, replyTo: "help@example.com", headers: { "X-Order": "4711" }, tags: ["ü"], cc: undefined };
  const result = await client(server).send(email);
  const [{ method, url, headers, body }] = server.requests;
  assert.deepEqual([method, url], ["POST", "/emails"]);
  assert.equal(headers.authorization, "Basic YWRhOnNlY3JldA==");
  assert.equal(headers["content-type"], "application/json");
  assert.equal(headers.accept, "application/json");
  assert.equal(headers["user-agent"], `mail-appliance-node/${library.VERSION} node/${process.versions.node}`);
  assert.match(headers["idempotency-key"], AUTOMATIC_KEY);
  assert.deepEqual(JSON.parse(body), {
    ...EMAIL,
    reply_to: "help@example.com",
    headers: { "X-Order": "4711" },
    tags: ["ü"],
  });
  assert.deepEqual(result, {
    id: "msg_1",
    status: "scheduled",
    source: "api",
    requestId: "req_1",
    from: null,
    to: ["ada@example.net"],
    cc: [],
    bcc: [],
    replyTo: null,
    subject: null,
    billingStatus: "donated",
    recipientCount: 1,
    creditsReserved: null,
    headers: null,
    tags: [],
    attachments: [{ filename: "a.txt", contentType: null, size: 2, contentId: null }],
    scheduledAt: null,
    idempotencyKey: headers["idempotency-key"],
    replayed: false,
  });
});

test("every attempt has the same key and body, and a lost answer is replayed", async (t) => {
  const busy = error(503, "temporary_failure", { "Retry-After": "0" });
  const inProgress = error(409, "idempotency_in_progress", { "Retry-After": "0" });
  const server = await serve(t, [reset, busy, inProgress, json(202, ACCEPTED, { "Idempotent-Replayed": "true" })]);
  const result = await client(server).send(EMAIL);
  assert.equal(result.replayed, true);
  assert.equal(server.requests.length, 4);
  assert.equal(new Set(server.requests.map(({ headers, body }) => headers["idempotency-key"] + body)).size, 1);
  assert.equal(result.idempotencyKey, server.requests[0].headers["idempotency-key"]);
});

test("each send without a key gets one of its own; a given key is used as it is", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED)]);
  const mail = client(server);
  const keys = [await mail.send(EMAIL), await mail.send(EMAIL), await mail.send(EMAIL, { idempotencyKey: "order 1!" })];
  assert.notEqual(keys[0].idempotencyKey, keys[1].idempotencyKey);
  assert.equal(server.requests[2].headers["idempotency-key"], "order 1!");
});

test("a key that no header can carry is refused before any request", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED)]);
  for (const idempotencyKey of ["", " a", "a ", "ü", "a\nb", "x".repeat(256)]) {
    await assert.rejects(
      client(server).send(EMAIL, { idempotencyKey }),
      (e) => e instanceof ConfigurationError && e.idempotencyKey === idempotencyKey,
    );
  }
  await client(server).send(EMAIL, { idempotencyKey: "x".repeat(255) });
  assert.equal(server.requests.length, 1);
});

test("each code of the interface has its class", async (t) => {
  const classes = {
    invalid_request: "InvalidRequest",
    unauthorized: "Unauthorized",
    forbidden: "Forbidden",
    not_found: "NotFound",
    conflict: "Conflict",
    insufficient_credits: "InsufficientCredits",
    rate_limited: "RateLimited",
    warmup_limited: "WarmupLimited",
    account_suspended: "AccountSuspended",
    payload_too_large: "PayloadTooLarge",
    service_unavailable: "ServiceUnavailable",
    temporary_failure: "TemporaryFailure",
    internal_error: "InternalError",
    idempotency_conflict: "IdempotencyConflict",
    idempotency_in_progress: "IdempotencyInProgress",
    brand_new: "ApiError",
    toString: "ApiError",
  };
  const server = await serve(
    t,
    Object.keys(classes).map((code) => error(418, code, { "Retry-After": "7" })),
  );
  for (const [code, name] of Object.entries(classes)) {
    const thrown = await client(server)
      .send(EMAIL, { idempotencyKey: "k" })
      .catch((e) => e);
    assert.ok(thrown instanceof library[name] && thrown instanceof ApiError && thrown instanceof MailApplianceError);
    const { status, message, requestId, retryAfter, idempotencyKey } = thrown;
    assert.deepEqual([thrown.name, thrown.code, status, message], [name, code, 418, `about ${code}`]);
    assert.deepEqual([requestId, retryAfter, idempotencyKey], ["req_e", 7, "k"]);
  }
});

test("an answer that is not an error object is an ApiError with its status and text", async (t) => {
  const page = (status) => (_request, response) =>
    response.writeHead(status, { "X-Request-ID": "req_h" }).end("<h1>Bad gateway</h1>");
  const server = await serve(t, [
    page(502),
    json(500, []),
    json(202, { status: "queued" }),
    page(202),
    json(200, ["x"]),
  ]);
  for (const status of [502, 500, 202, 202]) {
    const thrown = await client(server)
      .send(EMAIL)
      .catch((e) => e);
    assert.equal(thrown.constructor, ApiError);
    assert.deepEqual([thrown.status, thrown.code], [status, null]);
    assert.match(thrown.message, new RegExp(`${status}.*`));
    if (server.requests.length === 1) assert.match(thrown.message, /502.*Bad gateway/);
    if (server.requests.length === 1) assert.equal(thrown.requestId, "req_h");
  }
  await assert.rejects(client(server).get("msg_1"), { name: "ApiError", status: 200 });
});

test("a redirect is an ApiError and is not followed", async (t) => {
  const server = await serve(t, [(_request, response) => response.writeHead(307, { Location: "/elsewhere" }).end()]);
  await assert.rejects(client(server).send(EMAIL), { name: "ApiError", status: 307, code: null });
  assert.deepEqual(
    server.requests.map(({ url }) => url),
    ["/emails"],
  );
});

test("a Retry-After of more than 30 s is left to the caller", async (t) => {
  const server = await serve(t, [error(429, "rate_limited", { "Retry-After": "3600" })]);
  await assert.rejects(client(server).send(EMAIL), { name: "RateLimited", retryAfter: 3600 });
  assert.equal(server.requests.length, 1);
});

test("retries end; what was lost is a ConnectionFailed with key and cause", async (t) => {
  const server = await serve(t, [reset]);
  const thrown = await client(server, { retries: 2 })
    .send(EMAIL)
    .catch((e) => e);
  assert.ok(thrown instanceof ConnectionFailed && thrown.cause instanceof Error);
  assert.match(thrown.idempotencyKey, AUTOMATIC_KEY);
  assert.equal(server.requests.length, 3);
  await assert.rejects(
    client(server, { retries: 0 }).get("msg_1"),
    (e) => e instanceof ConnectionFailed && e.idempotencyKey === null,
  );
  assert.equal(server.requests.length, 4);
});

test("a certificate that does not verify is not tried again, other TLS errors are", async () => {
  const calls = async (code) => {
    const fetch = mock.fn(async () => {
      throw new TypeError("fetch failed", { cause: Object.assign(new Error("tls"), { code }) });
    });
    await assert.rejects(
      new MailAppliance({ baseUrl: "https://a", token: "t", fetch }).send(EMAIL),
      /fetch failed: tls/,
    );
    return fetch.mock.callCount?.() ?? fetch.mock.calls.length;
  };
  const untrusted = [
    "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
    "DEPTH_ZERO_SELF_SIGNED_CERT",
    "SELF_SIGNED_CERT_IN_CHAIN",
    "CERT_HAS_EXPIRED",
  ];
  for (const code of [...untrusted, "ERR_TLS_CERT_ALTNAME_INVALID", "UNABLE_TO_GET_ISSUER_CERT_LOCALLY"])
    assert.equal(await calls(code), 1, code);
  for (const code of ["ERR_TLS_HANDSHAKE_TIMEOUT", "ECONNRESET", "UND_ERR_SOCKET", "ENOTFOUND"])
    assert.equal(await calls(code), 4, code);
});

test("consecutive calls share one connection, also after errors", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED), error(400, "invalid_request"), json(202, ACCEPTED)]);
  const mail = client(server);
  await mail.send(EMAIL);
  await assert.rejects(mail.send(EMAIL));
  await mail.send(EMAIL);
  await mail.get("msg_1");
  assert.equal(server.connections(), 1);
});

test("one client makes many sends at the same time", async (t) => {
  const server = await serve(t, [reset, error(503, "temporary_failure"), json(202, ACCEPTED)]);
  const results = await Promise.all(Array.from({ length: 16 }, () => client(server).send(EMAIL)));
  assert.equal(new Set(results.map(({ idempotencyKey }) => idempotencyKey)).size, 16);
  assert.equal(server.requests.length, 18);
});

test("a given fetch is used, and has to end when its attempt does", async () => {
  const calls = [];
  const fetch = async (url, init) => {
    calls.push({ url, ...init });
    return calls.length === 1 ? new Promise(() => undefined) : new Response(JSON.stringify(ACCEPTED), { status: 202 });
  };
  const mail = new MailAppliance({ baseUrl: "http://mail.invalid/base/", token: "t", fetch, timeout: 50 });
  assert.equal((await mail.send(EMAIL)).id, "msg_1");
  const { url, method, redirect, headers, body } = calls[1];
  assert.deepEqual(
    [url, method, redirect, headers.Authorization],
    ["http://mail.invalid/base/emails", "POST", "manual", "Bearer t"],
  );
  assert.deepEqual(JSON.parse(body), EMAIL);
});

test("the global fetch is looked up at each call", async (t) => {
  const mail = new MailAppliance({ baseUrl: "http://mail.invalid", token: "t" });
  t.mock.method(globalThis, "fetch", async () => new Response(JSON.stringify(ACCEPTED)));
  assert.equal((await mail.send(EMAIL)).id, "msg_1");
});

test("get reads a message; its id is percent-encoded and never empty", async (t) => {
  const recipient = {
    id: "rcp_1",
    email: "ada@example.net",
    status: "read",
    attempt_count: 1,
    last_smtp_code: 250,
    note: 7,
  };
  const body = {
    id: "msg_1",
    status: "delivered",
    created_at: "2026-11-16T12:00:00Z",
    recipients: [recipient],
    request_id: "req_1",
  };
  const server = await serve(t, [json(200, body), json(200, { id: "x" })]);
  const message = await client(server).get("a/b?c d");
  assert.equal(server.requests[0].url, "/emails/a%2Fb%3Fc%20d");
  assert.equal(server.requests[0].headers["idempotency-key"], undefined);
  assert.equal(message.createdAt, "2026-11-16T12:00:00Z");
  assert.deepEqual(message.recipients, [
    {
      id: "rcp_1",
      email: "ada@example.net",
      status: "read",
      billingStatus: null,
      attemptCount: 1,
      lastSmtpCode: 250,
      lastSmtpResponse: null,
      deliveredAt: null,
      bouncedAt: null,
    },
  ]);
  assert.deepEqual((await client(server).get("x")).recipients, []);
  for (const id of ["", ".", ".."]) await assert.rejects(client(server).get(id), ConfigurationError);
  assert.equal(server.requests.length, 2);
});

test("attachments come from bytes, files and streams", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "mail-appliance-"));
  t.after(() => rm(folder, { recursive: true }));
  const path = join(folder, "ü.bin");
  const bytes = Buffer.from(Array.from({ length: 70_000 }, (_, index) => index % 251));
  await writeFile(path, bytes);
  const server = await serve(t, [json(202, ACCEPTED)]);
  const filename = "a.bin";
  const attachments = [
    { filename, content: bytes, contentType: "text/plain", contentId: "logo" },
    { filename, content: new Uint8Array([0, ...bytes]).subarray(1) },
    { filename, content: new Uint8Array(bytes).buffer },
    { path },
    { path: pathToFileURL(path), filename },
    { filename, content: createReadStream(path) },
    { filename, content: Readable.toWeb(createReadStream(path)) },
    { filename, content: { getReader: () => Readable.toWeb(createReadStream(path)).getReader() } },
    { filename, content: Readable.from(["ä", "b"]) },
  ];
  await client(server).send({ ...EMAIL, attachments });
  const sent = JSON.parse(server.requests[0].body).attachments;
  const content = bytes.toString("base64");
  assert.deepEqual(sent[0], { filename, content, content_type: "text/plain", content_id: "logo" });
  assert.deepEqual(sent[3], { filename: "ü.bin", content });
  for (const index of [1, 2, 4, 5, 6, 7]) assert.deepEqual(sent[index], { filename, content }, String(index));
  assert.equal(sent[8].content, Buffer.from("äb").toString("base64"));
});

test("an attachment that cannot be read is refused before any request, with the key", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED)]);
  const filename = "a";
  const broken = Readable.from(
    (async function* () {
      yield Buffer.from("a");
      throw new Error("disk");
    })(),
  );
  for (const attachment of [
    { path: "/does/not/exist" },
    { filename, content: "text" },
    { filename },
    { filename, content: Readable.from([{}]) },
    { filename, content: broken },
    { filename, content: null },
  ]) {
    const thrown = await client(server)
      .send({ ...EMAIL, attachments: [attachment] }, { idempotencyKey: "k" })
      .catch((e) => e);
    assert.ok(thrown instanceof ConfigurationError && thrown.cause instanceof Error, String(thrown));
    assert.equal(thrown.idempotencyKey, "k");
  }
  await assert.rejects(client(server).send({ ...EMAIL, replyTo: "a@b.c", reply_to: "d@e.f" }), ConfigurationError);
  assert.equal(server.requests.length, 0);
});

test("the password is not shown when a client is printed", async () => {
  const { inspect } = await import("node:util");
  const mail = new MailAppliance({ baseUrl: "http://a", username: "ada", password: "hidden" });
  assert.doesNotMatch(inspect(mail, { depth: 9, showHidden: true }) + JSON.stringify(mail), /hidden|aGlkZGVu/);
});
