import assert from "node:assert/strict";
import { test } from "node:test";

import { ConfigurationError, Conflict, ConnectionFailed, IdempotencyConflict, MailAppliance, NotFound, RateLimited } from "mail-appliance";
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

test("batches and schedules work as in the appliance", async () => {
  const mail = new FakeMailAppliance();
  const emails = [1, 2].map(() => ({ ...EMAIL, scheduledAt: "2030-01-02T03:04:05Z", metadata: { order: "17" } }));
  const first = await mail.sendBatch(emails, { idempotencyKey: "k" });
  const again = await mail.sendBatch(emails, { idempotencyKey: "k" });
  assert.deepEqual([first.accepted, first.refused, first.results.length, first.replayed], [2, 0, 2, false]);
  assert.deepEqual([again.results, again.replayed, mail.sent.length], [first.results, true, 2]);
  await assert.rejects(mail.sendBatch(emails.slice(1), { idempotencyKey: "k" }), IdempotencyConflict);
  const [one, two] = first.results.map(({ id }) => id);
  const moved = await mail.reschedule(one, new Date("2031-01-01"));
  assert.deepEqual([moved.scheduledAt, moved.metadata], ["2031-01-01T00:00:00.000Z", { order: "17" }]);
  assert.equal(moved.recipients[0].status, "scheduled");
  assert.deepEqual([(await mail.cancel(one)).status, (await mail.get(two)).status], ["failed", "queued"]);
  await assert.rejects(mail.cancel(one), Conflict);
  await assert.rejects(mail.reschedule(one, "2031-01-01T00:00:00Z"), Conflict);
  await assert.rejects(mail.cancel("msg_unknown"), NotFound);
  await assert.rejects(mail.reschedule(two, new Date("no date")), ConfigurationError);
  await assert.rejects(mail.sendBatch([EMAIL, { ...EMAIL, attachments: [{ filename: "a" }] }]), {
    name: "ConfigurationError",
    message: /emails\[1\]\.attachments\[0\]/,
  });
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
