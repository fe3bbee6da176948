import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer as createTcpServer } from "node:net";
import { describe, it } from "node:test";

import { ConfigurationError, MailAppliance, WaitTimeout } from "mail-appliance";

import { ACCEPTED, EMAIL, error, json, serve } from "./server.mjs";

const client = (server, options = {}) => new MailAppliance({ baseUrl: server.url, token: "t", ...options });

describe("time-outs, pauses and signals", { concurrency: true }, () => {
  it("one attempt ends at its time-out, however the answer trickles", async (t) => {
    const trickle = (_request, response) => {
      const timer = setInterval(() => response.write(" "), 20);
      response.on("close", () => clearInterval(timer));
    };
    const server = await serve(t, [trickle, () => undefined, json(202, ACCEPTED)]);
    await client(server, { timeout: 1000 }).send(EMAIL);
    assert.equal(server.requests.length, 3);
    await assert.rejects(
      client(await serve(t, [trickle]), { timeout: 200, retries: 0 }).send(EMAIL),
      /no whole answer within 200 ms/,
    );
  });

  it("a connection that is not made ends at the connect time-out, TLS included", async (t) => {
    const sockets = [];
    const silent = createTcpServer((socket) => sockets.push(socket)).listen(0, "127.0.0.1");
    await once(silent, "listening");
    t.after(() => {
      sockets.forEach((socket) => socket.destroy());
      silent.close();
    });
    const options = { url: `https://127.0.0.1:${silent.address().port}` };
    await assert.rejects(
      client(options, { connectTimeout: 200, retries: 1 }).send(EMAIL),
      /no connection within 200 ms/,
    );
    assert.equal(sockets.length, 2);
  });

  it("a slow answer on a made connection is no matter of the connect time-out", async (t) => {
    const server = await serve(t, [(request, response) => setTimeout(json(202, ACCEPTED), 2500, request, response)]);
    assert.equal((await client(server, { connectTimeout: 2000, retries: 0 }).send(EMAIL)).id, "msg_1");
  });

  it("the caller's signal ends a call before, during and between attempts, with its reason", async (t) => {
    const reason = new Error("shutting down");
    const server = await serve(t, [() => undefined]);
    await assert.rejects(client(server).send(EMAIL, { signal: AbortSignal.abort(reason) }), reason);
    assert.equal(server.requests.length, 0);
    const during = new AbortController();
    const hanging = await serve(t, [() => during.abort(reason)]);
    await assert.rejects(client(hanging).send(EMAIL, { signal: during.signal }), reason);
    const between = new AbortController();
    const busy = await serve(t, [error(429, "rate_limited", { "Retry-After": "30" })]);
    setTimeout(() => between.abort(reason), 300);
    await assert.rejects(client(busy).get("msg_1", { signal: between.signal }), reason);
    const waiting = new AbortController();
    const queued = await serve(t, [json(200, { id: "msg_1", status: "queued" })]);
    setTimeout(() => waiting.abort(reason), 300);
    await assert.rejects(client(queued).wait("msg_1", { signal: waiting.signal }), reason);
  });

  it("at most 16 MiB of an answer are read", async (t) => {
    let written = 0;
    const endless = (_request, response) => {
      const chunk = Buffer.alloc(1024 * 1024, " ");
      const write = () => {
        while (!response.destroyed && response.write(chunk)) written++;
      };
      response.on("drain", write);
      write();
    };
    const server = await serve(t, [endless]);
    await assert.rejects(client(server, { retries: 0 }).get("msg_1"), { name: "ApiError", status: 200 });
    assert.ok(written < 64, `${written} MiB written`);
  });

  it("wait polls until the status is final, and not longer than its time-out", async (t) => {
    const status = (value) => json(200, { id: "msg_1", status: value });
    const server = await serve(t, [status("queued"), status("paused"), status("partial")]);
    assert.equal((await client(server).wait("msg_1")).status, "partial");
    assert.equal(server.requests.length, 3);
    const queued = await serve(t, [status("queued")]);
    const thrown = await client(queued)
      .wait("msg_1", { timeout: 600 })
      .catch((e) => e);
    assert.ok(thrown instanceof WaitTimeout);
    assert.equal(thrown.lastMessage.status, "queued");
    await assert.rejects(client(queued).wait("msg_1", { timeout: Number.NaN }), ConfigurationError);
  });
});
