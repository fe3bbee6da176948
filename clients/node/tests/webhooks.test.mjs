import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";

import { ConfigurationError, SignatureInvalid, verify } from "mail-appliance";

const NOW = 1_794_830_400;
const SECRET = "whsec_one";
const BODY = JSON.stringify({
  id: "evt_1",
  type: "email.bounced",
  created_at: "2026-11-16T12:00:00Z",
  data: { email_id: "msg_1", to: "ä@example.net", smtp_code: 550, device: "phone" },
});
const hmac = (body, time = NOW, secret = SECRET) =>
  createHmac("sha256", secret).update(`${time}.`).update(body).digest("hex");
const header = (body = BODY, time = NOW, secret = SECRET) => `t=${time},v1=${hmac(body, time, secret)}`;
const refused = (...call) => assert.throws(() => verify(...call), SignatureInvalid);

test("a signed event is returned, from text and from bytes", () => {
  const data = { emailId: "msg_1", to: "ä@example.net", smtpCode: 550 };
  const event = { id: "evt_1", type: "email.bounced", createdAt: "2026-11-16T12:00:00Z", data };
  assert.deepEqual(verify(BODY, header(), SECRET, { now: NOW }), event);
  assert.deepEqual(verify(Buffer.from(BODY), header(), [SECRET], { now: NOW }), event);
});

test("the default clock and tolerance accept a signature of now only", () => {
  const now = Math.floor(Date.now() / 1000);
  assert.equal(verify(BODY, header(BODY, now), SECRET).id, "evt_1");
  refused(BODY, header(BODY, now - 400), SECRET);
});

test("any of the secrets and of the v1 parts may match, among unknown parts", () => {
  assert.equal(verify(BODY, header(), ["whsec_two", SECRET], { now: NOW }).id, "evt_1");
  const parts = `v0=x,v1=${"0".repeat(64)},v1=${hmac(BODY)},t=${NOW}`;
  assert.equal(verify(BODY, parts, SECRET, { now: NOW }).id, "evt_1");
  refused(BODY, header(), ["whsec_two", "whsec_three"], { now: NOW });
});

test("a time outside of the tolerance is refused in either direction", () => {
  for (const difference of [-300, 300]) assert.ok(verify(BODY, header(), SECRET, { now: NOW + difference }));
  for (const difference of [-301, 301]) refused(BODY, header(), SECRET, { now: NOW + difference });
  refused(BODY, header(), SECRET, { now: NOW + 11, tolerance: 10 });
  refused(BODY, header(), SECRET, { now: Number.NaN });
});

test("altered, foreign and malformed signatures are refused", () => {
  const options = { now: NOW };
  refused(`${BODY} `, header(), SECRET, options);
  refused(BODY, header().replace(`t=${NOW}`, `t=${NOW + 1}`), SECRET, options);
  for (const malformed of [
    undefined,
    null,
    [],
    "",
    ",",
    "t",
    `t=${NOW}`,
    `v1=${hmac(BODY)}`,
    `t=${NOW},t=${NOW},v1=${hmac(BODY)}`,
  ]) {
    refused(BODY, malformed, SECRET, options);
  }
  for (const value of ["", "zz", "0".repeat(63), `${hmac(BODY)}00`])
    refused(BODY, `t=${NOW},v1=${value}`, SECRET, options);
  for (const time of ["", "now", "-1", "1.0", "0x6A", "9".repeat(32)])
    refused(BODY, header(BODY, time), SECRET, options);
});

test("a signed body that is not an event is refused", () => {
  for (const body of [
    "",
    "no JSON",
    "[]",
    "null",
    "{}",
    '{"id":"evt_1"}',
    '{"id":1,"type":"x","data":{}}',
    '{"id":"a","type":"b","data":[]}',
  ]) {
    refused(body, header(body), SECRET, { now: NOW });
  }
});

test("a missing secret or tolerance is the caller's mistake", () => {
  for (const secrets of ["", [], [""], [SECRET, ""], undefined, null, [undefined], [SECRET, null]])
    assert.throws(() => verify(BODY, header(), secrets, { now: NOW }), ConfigurationError);
  for (const tolerance of [-1, Number.NaN])
    assert.throws(() => verify(BODY, header(), SECRET, { now: NOW, tolerance }), ConfigurationError);
});
