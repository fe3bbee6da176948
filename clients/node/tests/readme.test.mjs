/** Runs every code block of the README, each in a process of its own. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { ACCEPTED, error, json, serve } from "./server.mjs";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const README = readFileSync(new URL("../README.md", import.meta.url), "utf8");
const BLOCKS = [...README.matchAll(/^```(\w*)\n(.*?)^```/gms)].map(([, language, code]) => ({ language, code }));
const [FIRST, ERRORS, HTTP, EXPRESS, NODEMAILER, TESTS] = BLOCKS.map(({ code }) => code);
const SECRET = "whsec_readme";

function start(code, variables) {
  const environment = { PATH: process.env.PATH, ...variables };
  return spawn(process.execPath, ["--input-type=module", "--eval", code], {
    cwd: ROOT,
    env: environment,
    stdio: ["ignore", "pipe", "pipe"],
  });
}

async function run(code, url = "") {
  const child = start(code, {
    MAIL_APPLIANCE_URL: url,
    MAIL_APPLIANCE_USERNAME: "ada",
    MAIL_APPLIANCE_PASSWORD: "secret",
  });
  const [output, errors, [status]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "close")]);
  return { output, errors, status };
}

test("all blocks are known here", () =>
  assert.deepEqual(
    BLOCKS.map(({ language }) => language),
    Array(6).fill("js"),
  ));

test("first send", async (t) => {
  const delivered = { id: "msg_1", status: "delivered", recipients: [{ email: "ada@example.net", status: "delivered" }] };
  const server = await serve(t, [json(202, ACCEPTED), json(200, delivered)]);
  assert.deepEqual(await run(FIRST, server.url), { output: "ada@example.net: delivered\n", errors: "", status: 0 });
  assert.equal(JSON.parse(server.requests[0].body).attachments[0].content, Buffer.from("1 engine").toString("base64"));
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
}

test("nodemailer", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED)]);
  assert.deepEqual(await run(NODEMAILER, server.url), { output: "msg_1 order-4711 false\n", errors: "", status: 0 });
  assert.equal(server.requests[0].headers["idempotency-key"], "order-4711");
});

test("tests", async () => assert.deepEqual(await run(TESTS), { output: "", errors: "", status: 0 }));
