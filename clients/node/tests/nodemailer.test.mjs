import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { test } from "node:test";

import { ConfigurationError, Forbidden } from "mail-appliance";
import { mailApplianceTransport } from "mail-appliance/nodemailer";
import { FakeMailAppliance } from "mail-appliance/testing";
import nodemailer from "nodemailer";

import { ACCEPTED, json, serve } from "./server.mjs";

const MESSAGE = { from: "shop@example.com", to: "ada@example.net", subject: "Hello", text: "Hi" };

function fakeTransport() {
  const mail = new FakeMailAppliance();
  return { mail, transporter: nodemailer.createTransport(mailApplianceTransport(mail)) };
}

test("a plain message goes over HTTP with a key of its own", async (t) => {
  const server = await serve(t, [json(202, ACCEPTED)]);
  const transporter = nodemailer.createTransport(mailApplianceTransport({ baseUrl: server.url, token: "t" }));
  const info = await transporter.sendMail(MESSAGE);
  const { cc, bcc, headers, ...rest } = JSON.parse(server.requests[0].body);
  assert.deepEqual([rest, cc, bcc, headers], [{ ...MESSAGE, to: ["ada@example.net"] }, [], [], {}]);
  assert.deepEqual(info, {
    messageId: "msg_1",
    envelope: { from: "shop@example.com", to: ["ada@example.net"] },
    accepted: ["ada@example.net"],
    rejected: [],
    pending: [],
    response: "queued as msg_1",
    idempotencyKey: server.requests[0].headers["idempotency-key"],
    replayed: false,
  });
});

test("names, headers, tags and the key of a message are carried", async () => {
  const { mail, transporter } = fakeTransport();
  await transporter.sendMail({
    from: '"Shop, Inc." <shop@example.com>',
    to: ["Jörg <joerg@example.net>", { name: 'Ada "A" \\', address: "ada@example.net" }],
    cc: "b@example.net, c@example.net",
    bcc: "d@example.net",
    replyTo: "Help <help@example.com>",
    subject: "Grüße",
    text: Buffer.from("text"),
    html: { content: Readable.from([Buffer.from("<p>ä</p>")]) },
    headers: {
      "idempotency-key": "order-1",
      "X-Service-Tag": "order, first",
      "X-Service-Metadata": ["order=4711", "note = a=b"],
      "X-Service-Scheduled-At": "2030-01-02T03:04:05Z",
      "X-Order": { prepared: true, value: "4711" },
      "X-None": undefined,
    },
    list: { unsubscribe: { url: "https://example.com/u", comment: "Bye" } },
    references: ["<a@example.com>", "<b@example.com>"],
    inReplyTo: "<b@example.com>",
    priority: "high",
  });
  const [{ idempotencyKey, email }] = mail.sent;
  assert.equal(idempotencyKey, "order-1");
  assert.deepEqual(email, {
    from: '"Shop, Inc." <shop@example.com>',
    to: ['"Jörg" <joerg@example.net>', '"Ada \\"A\\" \\\\" <ada@example.net>'],
    cc: ["b@example.net", "c@example.net"],
    bcc: ["d@example.net"],
    reply_to: '"Help" <help@example.com>',
    subject: "Grüße",
    text: "text",
    html: "<p>ä</p>",
    headers: {
      "X-Order": "4711",
      "X-Priority": "1 (Highest)",
      "X-MSMail-Priority": "High",
      Importance: "High",
      References: "<a@example.com> <b@example.com>",
      "In-Reply-To": "<b@example.com>",
      "List-Unsubscribe": "<https://example.com/u> (Bye)",
    },
    tags: ["order", "first"],
    scheduled_at: "2030-01-02T03:04:05Z",
    metadata: { order: "4711", note: "a=b" },
  });
});

test("attachments of all kinds are carried, inline images with their cid", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "mail-appliance-"));
  t.after(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, "file.txt"), "file");
  const { mail, transporter } = fakeTransport();
  const attachments = [
    { filename: "text.txt", content: "ä" },
    { filename: "hex.txt", content: "6869", encoding: "hex" },
    { filename: "base64.txt", content: "aGk=", encoding: "base64" },
    { filename: "empty.txt", content: "" },
    { filename: "stream.bin", content: Readable.from([Buffer.from([0, 255])]), contentType: "application/x-own" },
    { path: join(folder, "file.txt") },
    { filename: "logo.png", content: Buffer.from("png"), cid: "logo@example.com" },
  ];
  const given = attachments.map((each) => ({ ...each }));
  await transporter.sendMail({ ...MESSAGE, attachments: [...attachments, { path: "data:text/csv;base64,aGk=" }] });
  const sent = mail.sent[0].email.attachments.map(({ content, ...rest }) => [
    ...Object.values(rest),
    Buffer.from(content, "base64").toString("latin1"),
  ]);
  assert.deepEqual(sent, [
    ["text.txt", "text/plain", Buffer.from("ä").toString("latin1")],
    ["hex.txt", "text/plain", "hi"],
    ["base64.txt", "text/plain", "hi"],
    ["empty.txt", "text/plain", ""],
    ["stream.bin", "application/x-own", "\x00\xff"],
    ["file.txt", "text/plain", "file"],
    ["logo.png", "image/png", "logo@example.com", "png"],
    ["attachment-8.csv", "text/csv", "hi"],
  ]);
  assert.deepEqual(attachments, given, "the caller's objects are not changed");
});

test("what JSON cannot carry is refused by name", async () => {
  const { mail, transporter } = fakeTransport();
  const attachment = { filename: "a.txt", content: "a" };
  const refusals = {
    raw: { raw: "From: a@example.com\r\n\r\nHi" },
    amp: { amp: "<html amp4email></html>" },
    watchHtml: { watchHtml: "<p>Hi</p>" },
    icalEvent: { icalEvent: { content: "BEGIN:VCALENDAR" } },
    alternatives: { alternatives: [{ contentType: "text/x-web-markdown", content: "**Hi**" }] },
    sender: { sender: "b@example.com" },
    envelope: { envelope: { from: "b@example.com", to: "c@example.net" } },
    messageId: { messageId: "<a@example.com>" },
    date: { date: new Date(0) },
    dkim: { dkim: { domainName: "example.com", keySelector: "a", privateKey: "b" } },
    dsn: { dsn: { id: "a" } },
    "from with several": { from: "a@example.com, b@example.com" },
    "replyTo with several": { replyTo: "a@example.com, b@example.com" },
    "a group in to": { to: "Friends: a@example.net, b@example.net;" },
    "X-Service-Metadata without key=value": { headers: { "X-Service-Metadata": "order" } },
    "the metadata a twice": { headers: { "X-Service-Metadata": ["a=1", "a=2"] } },
    "several X-A headers": { headers: { "X-A": ["1", "2"] } },
    "several x-b headers": {
      headers: [
        { key: "X-B", value: "1" },
        { key: "x-b", value: "2" },
      ],
    },
    "attachments[0].raw": { attachments: [{ raw: "Content-Type: text/plain\r\n\r\nHi" }] },
    "attachments[1].headers": { attachments: [attachment, { ...attachment, headers: { "X-A": "1" } }] },
    "attachments[0] without a filename": { attachments: [{ ...attachment, filename: false }] },
    'attachments[0].contentDisposition "inline"': { attachments: [{ ...attachment, contentDisposition: "inline" }] },
  };
  for (const [name, fields] of Object.entries(refusals)) {
    const refused = (error) => error instanceof ConfigurationError && error.message.includes(` cannot carry ${name}`);
    await assert.rejects(transporter.sendMail({ ...MESSAGE, ...fields }), refused, name);
  }
  assert.equal(mail.sent.length, 0);
});

test("forbidden files and addresses are not read", async () => {
  const { mail, transporter } = fakeTransport();
  const file = { path: "/etc/hostname" };
  const address = { href: "http://127.0.0.1:1/" };
  for (const [fields, reason] of [
    [{ disableFileAccess: true, attachments: [file] }, /attachments\[0\]: disableFileAccess/],
    [{ disableFileAccess: true, html: file }, /html: disableFileAccess/],
    [{ disableUrlAccess: true, attachments: [address] }, /attachments\[0\]: disableUrlAccess/],
    [{ disableUrlAccess: true, text: { path: address.href } }, /text: disableUrlAccess/],
  ]) {
    await assert.rejects(transporter.sendMail({ ...MESSAGE, ...fields }), reason);
  }
  assert.equal(mail.sent.length, 0);
});

test("the appliance's errors reach the caller, by promise and by callback", async () => {
  const { mail, transporter } = fakeTransport();
  mail.failNext("forbidden");
  await assert.rejects(
    transporter.sendMail({ ...MESSAGE, headers: { "Idempotency-Key": "k" } }),
    (error) => error instanceof Forbidden && error.idempotencyKey === "k",
  );
  mail.failNext("forbidden");
  const error = await new Promise((resolve) => transporter.sendMail(MESSAGE, resolve));
  assert.ok(error instanceof Forbidden);
});
