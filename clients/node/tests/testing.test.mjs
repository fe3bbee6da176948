import assert from "node:assert/strict";
import { test } from "node:test";

import { ConnectionFailed, IdempotencyConflict, MailAppliance, NotFound, RateLimited } from "mail-appliance";
import { FakeMailAppliance } from "mail-appliance/testing";

import { EMAIL } from "./server.mjs";

test("the fake is a client that records what it accepts", async () => {
  const mail = new FakeMailAppliance();
  assert.ok(mail instanceof MailAppliance);
  const attachments = [{ filename: "a.txt", content: Buffer.from("hi") }];
  const result = await mail.send(
    { ...EMAIL, cc: ["Ada <ADA@example.net>", "b@example.net"], attachments },
    { idempotencyKey: "k" },
  );
  assert.deepEqual(
    [result.status, result.recipientCount, result.attachments[0].size, result.replayed],
    ["queued", 2, 2, false],
  );
  const email = {
    ...EMAIL,
    cc: ["Ada <ADA@example.net>", "b@example.net"],
    attachments: [{ filename: "a.txt", content: "aGk=" }],
  };
  assert.deepEqual(mail.sent, [{ id: result.id, idempotencyKey: "k", email }]);
});

test("the same key is replayed with the same email and a conflict with another", async () => {
  const mail = new FakeMailAppliance();
  const first = await mail.send(EMAIL, { idempotencyKey: "k" });
  const second = await mail.send(EMAIL, { idempotencyKey: "k" });
  assert.deepEqual([second.id, second.replayed, mail.sent.length], [first.id, true, 1]);
  await assert.rejects(mail.send({ ...EMAIL, text: "other" }, { idempotencyKey: "k" }), IdempotencyConflict);
});

test("recipients have the sandbox's results", async () => {
  const mail = new FakeMailAppliance();
  const outcome = async (...to) => {
    const { id } = await mail.send({ ...EMAIL, to });
    const { status, billingStatus, recipients } = await mail.wait(id);
    return [status, billingStatus, recipients.map((each) => [each.status, each.lastSmtpCode, each.attemptCount])];
  };
  const [delivered, bounced, failed] = [
    ["delivered", 250, 1],
    ["bounced", 550, 1],
    ["failed", 451, 12],
  ];
  assert.deepEqual(await outcome("ada@example.net"), ["delivered", "settled", [delivered]]);
  assert.deepEqual(await outcome("Ada <ada@example.net>", "bounce@example.net"), [
    "partial",
    "settled",
    [delivered, bounced],
  ]);
  assert.deepEqual(await outcome("bounce@example.net"), ["failed", "released", [bounced]]);
  assert.deepEqual(await outcome("fail@example.net"), ["failed", "settled", [failed]]);
  await assert.rejects(mail.get("msg_unknown"), NotFound);
});

test("failures come once each, in their order, and send nothing", async () => {
  const mail = new FakeMailAppliance();
  mail.failNext("rate_limited");
  mail.failNext("connection");
  await assert.rejects(mail.send(EMAIL), (error) => error instanceof RateLimited && error.status === 429);
  await assert.rejects(mail.send(EMAIL), ConnectionFailed);
  assert.equal(mail.sent.length, 0);
  await mail.send(EMAIL);
  assert.equal(mail.sent.length, 1);
});
