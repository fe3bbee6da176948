// A sign-up test as in the README, against the real program that $APPLIANCE_COMMAND names.
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";

import { DevAppliance } from "../dist/dev.mjs";

const skip = process.env.APPLIANCE_COMMAND ? false : "APPLIANCE_COMMAND is not set";
let appliance;

before(async () => {
  if (!skip) appliance = await DevAppliance.start();
});
beforeEach(() => appliance?.clear());
after(() => appliance?.stop());

test("a sign-up mails a link", { skip }, async () => {
  await appliance.client().send({
    from: "shop@my.test",
    to: "ada@example.net",
    subject: "Confirm your address",
    text: "https://my.test/confirm?token=42",
  });
  const { text, subject } = await appliance.wait({ to: "ada@example.net" });
  assert.equal(subject, "Confirm your address");
  assert.match(text, /confirm\?token=42/);
});

test("a message that does not come is an error", { skip }, async () => {
  await assert.rejects(appliance.wait({ to: "ada@example.net" }, { timeout: 0 }), /no message/);
});

test("a program that is not there is an error", async () => {
  await assert.rejects(DevAppliance.start("/nowhere/appliance"), /appliance dev did not start/);
});

test("stopping twice does nothing", { skip }, async () => {
  const another = await DevAppliance.start();
  await another.stop();
  await another.stop();
});
