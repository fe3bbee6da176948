/** Runs every code block of the README, each in a process of its own. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { ACCEPTED, error, json, serve } from "./server.mjs";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const README = readFileSync(new URL("../README.md", import.meta.url), "utf8");
const BLOCKS = [...README.matchAll(/^```(\w*)\n(.*?)^```/gms)].map(([, language, code]) => ({ language, code }));
const [INSTALL, FIRST, STATUS, BATCH, SCHEDULING, ERRORS, HTTP, EXPRESS, RECEIVED, NODEMAILER, TESTS, SIGN_UP] =
  BLOCKS.map(({ code }) => code);
const SECRET = "whsec_readme";

function start(code, variables, ...words) {
  const environment = { PATH: process.env.PATH, ...variables };
  return spawn(process.execPath, ["--input-type=module", "--eval", code, ...words], {
    cwd: ROOT,
    env: environment,
    stdio: ["ignore", "pipe", "pipe"],
  });
}

async function run(code, url = "", ...words) {
  const credentials = { MAIL_APPLIANCE_USERNAME: "ada", MAIL_APPLIANCE_PASSWORD: "secret" };
  const child = start(code, { MAIL_APPLIANCE_URL: url, ...credentials }, ...words);
  const [output, errors, [status]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "close")]);
  return { output, errors, status };
}

test("all blocks are known here", () =>
  assert.deepEqual(
    BLOCKS.map(({ language }) => language),
    ["sh", ...Array(11).fill("js")],
  ));

test("install", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "mail-appliance-readme-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const [library, application] = [join(folder, "mail-appliance", "clients", "node"), join(folder, "application")];
  cpSync(ROOT, library, { recursive: true, filter: (path) => path !== join(ROOT, "dist"), verbatimSymlinks: true });
  mkdirSync(application);
  const env = { PATH: process.env.PATH, HOME: folder, npm_config_offline: "true" }; // what it needs is there
  execFileSync("sh", ["-ec", INSTALL], { cwd: application, env, stdio: ["ignore", "ignore", "inherit"] });
  const script = 'import { VERSION } from "mail-appliance"; console.log(VERSION);';
  const command = ["--input-type=module", "--eval", script];
  const printed = execFileSync(process.execPath, command, { cwd: application, encoding: "utf8" });
  assert.equal(printed, readFileSync(new URL("../../VERSION", import.meta.url), "utf8"));
});

test("first send", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED)]);
  assert.deepEqual(await run(FIRST, server.url), { output: "msg_1: queued\n", errors: "", status: 0 });
  assert.equal(JSON.parse(server.requests[0].body).attachments[0].content, Buffer.from("1 engine").toString("base64"));
});

test("delivery status", async (t) => {
  const delivered = { id: "msg_1", status: "delivered", recipients: [{ email: "ada@example.net", status: "delivered" }] };
  const server = await serve(t, [json(200, delivered)]);
  const output = "ada@example.net: delivered\n";
  assert.deepEqual(await run(STATUS, server.url, "status.mjs", "msg_1"), { output, errors: "", status: 0 });
});

test("batch", async (t) => {
  const results = [
    { index: 0, id: "msg_1" },
    { index: 1, error: "to: no.", code: "invalid_request" },
  ];
  const server = await serve(t, [json(202, { results, accepted: 1, refused: 1 })]);
  assert.deepEqual(await run(BATCH, server.url), { output: "0 msg_1\n1 to: no.\n", errors: "", status: 0 });
  assert.equal(server.requests[0].headers["idempotency-key"], "news-17");
});

test("scheduling", async (t) => {
  const about = json(200, { id: "msg_1" });
  const server = await serve(t, [json(202, ACCEPTED), about, error(409, "conflict"), json(202, ACCEPTED), about, about]);
  assert.deepEqual(await run(SCHEDULING, server.url), { output: "already sent\n", errors: "", status: 0 });
  assert.deepEqual(await run(SCHEDULING, server.url), { output: "", errors: "", status: 0 });
  const [first, moved] = server.requests.map(({ body }) => body && JSON.parse(body));
  assert.deepEqual(first.metadata, { customer: "17" });
  assert.equal(Math.round((Date.parse(moved.scheduled_at) - Date.parse(first.scheduled_at)) / 3_600_000), 2);
});

test("errors", async (t) => {
  const server = await serve(t, [error(402, "insufficient_credits"), error(403, "forbidden")]);
  assert.equal((await run(ERRORS, server.url)).errors, "buy credits\n");
  assert.equal((await run(ERRORS, server.url)).errors, "403 forbidden about forbidden req_e null\n");
});

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

async function post(url, body, headers) {
  for (let tries = 0; tries < 100; tries++) {
    try {
      return await fetch(url, { method: "POST", body, headers });
    } catch {
      await setTimeout(100); // it does not listen yet
    }
  }
  throw new Error(`nothing listens at ${url}`);
}

test("a received message", async (t) => {
  const port = await freePort();
  const child = start(RECEIVED, { PORT: String(port), WEBHOOK_SECRET: SECRET });
  t.after(() => child.kill());
  const email = { from: "ada@example.net", dmarc: "pass", subject: "Hi", text: "Hello", attachments: [{ url: "u" }] };
  const time = Math.floor(Date.now() / 1000);
  for (const data of [{ ...email, auto_submitted: true }, { ...email, in_reply_to_email: { metadata: { ticket: "7" } } }]) {
    const body = JSON.stringify({ id: "evt_1", type: "email.received", data });
    const signature = `t=${time},v1=${createHmac("sha256", SECRET).update(`${time}.${body}`).digest("hex")}`;
    assert.equal((await post(`http://127.0.0.1:${port}/`, body, { "Service-Signature": signature })).status, 204);
  }
  const [printed] = await once(child.stdout, "data");
  assert.equal(String(printed), "ada@example.net pass Hi Hello 7 [ 'u' ]\n");
});

for (const [name, code] of Object.entries({ HTTP, EXPRESS })) {
  test(`webhooks: ${name}`, async (t) => {
    const port = await freePort();
    const child = start(code, { PORT: String(port), WEBHOOK_SECRET: SECRET });
    t.after(() => child.kill());
    const body = JSON.stringify({
      id: "evt_1",
      type: "email.delivered",
      created_at: "2026-11-16T12:00:00Z",
      data: { to: "ada@example.net" },
    });
    const time = Math.floor(Date.now() / 1000);
    const signature = `t=${time},v1=${createHmac("sha256", SECRET).update(`${time}.${body}`).digest("hex")}`;
    const headers = { "Content-Type": "application/json", "Service-Signature": signature };
    assert.equal((await post(`http://127.0.0.1:${port}/`, body, headers)).status, 204);
    assert.equal((await post(`http://127.0.0.1:${port}/`, `${body} `, headers)).status, 400);
    const [printed] = await once(child.stdout, "data");
    assert.equal(String(printed), "email.delivered ada@example.net\n");
  });

  test(`webhooks without a secret: ${name}`, async (t) => {
    const port = await freePort();
    const child = start(code, { PORT: String(port) });
    t.after(() => child.kill());
    const headers = { "Content-Type": "application/json", "Service-Signature": "t=1,v1=00" };
    assert.equal((await post(`http://127.0.0.1:${port}/`, "{}", headers)).status, 500);
  });
}

test("nodemailer", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED)]);
  assert.deepEqual(await run(NODEMAILER, server.url), { output: "msg_1\n", errors: "", status: 0 });
  assert.equal(server.requests[0].headers["idempotency-key"], "order-4711");
});

test("tests", async () => assert.deepEqual(await run(TESTS), { output: "", errors: "", status: 0 }));

const COMMAND = process.env.APPLIANCE_COMMAND;
test("sign-up", { skip: COMMAND ? false : "APPLIANCE_COMMAND is not set" }, async () => {
  const child = start(SIGN_UP, { APPLIANCE_COMMAND: COMMAND });
  const [errors, [status]] = await Promise.all([text(child.stderr), once(child, "close")]);
  assert.deepEqual({ errors, status }, { errors: "", status: 0 });
});
