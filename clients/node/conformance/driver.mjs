/** The driver of clients/conformance: a JSON command per line in, a JSON answer per line out. Needs `npm run build`. */

import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";

import * as library from "../dist/index.mjs";

const { MailAppliance, MailApplianceError, verify } = library;
let client;

const COMMANDS = {
  client({ url, token, username, password, retries, connect_timeout, timeout }) {
    const options = { baseUrl: url, token, username, password, retries };
    client = new MailAppliance({
      ...options,
      connectTimeout: milliseconds(connect_timeout),
      timeout: milliseconds(timeout),
    });
    return { ok: true };
  },
  async send({ message, idempotency_key: idempotencyKey }) {
    return { result: snake(await client.send(email(message), { idempotencyKey })) };
  },
  async sendBatch({ messages, on_error: onError, idempotency_key: idempotencyKey }) {
    return { result: snake(await client.sendBatch(messages.map(email), { onError, idempotencyKey })) };
  },
  async cancel({ id }) {
    return { result: snake(await client.cancel(id)) };
  },
  async reschedule({ id, ...at }) {
    return { result: snake(await client.reschedule(id, scheduled(at))) };
  },
  async get({ id }) {
    return { result: snake(await client.get(id)) };
  },
  async wait({ id, timeout }) {
    return { result: snake(await client.wait(id, { timeout: milliseconds(timeout) })) };
  },
  async parallel({ message, count }) {
    const sends = Array.from({ length: count }, () => client.send(email(message)).then(snake, failure));
    return { results: await Promise.all(sends) };
  },
  verify({ body_base64, header, secrets, tolerance, now }) {
    return { result: snake(verify(Buffer.from(body_base64, "base64"), header, secrets, { tolerance, now })) };
  },
};

function milliseconds(seconds) {
  return seconds === undefined ? undefined : seconds * 1000;
}

function email({ reply_to: replyTo, attachments, scheduled_at, scheduled_unix, ...rest }) {
  const scheduledAt = scheduled({ scheduled_at, scheduled_unix });
  return { ...rest, replyTo, scheduledAt, attachments: attachments?.map(attachment) };
}

function scheduled({ scheduled_at, scheduled_unix }) {
  return scheduled_unix === undefined ? scheduled_at : new Date(scheduled_unix * 1000);
}

function attachment({ filename, content_type: contentType, content_id: contentId, bytes_base64, path, stream_path }) {
  const options = { filename, contentType, contentId };
  if (path !== undefined) return { ...options, path };
  return {
    ...options,
    content: bytes_base64 === undefined ? createReadStream(stream_path) : Buffer.from(bytes_base64, "base64"),
  };
}

/** Names in snake case, as the interface has them; the keys of `headers` and `metadata` stay. */
function snake(value) {
  if (Array.isArray(value)) return value.map(snake);
  if (typeof value !== "object" || value === null) return value;
  const name = (key) => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [name(key), key === "headers" || key === "metadata" ? item : snake(item)]),
  );
}

function failure(error) {
  if (!(error instanceof MailApplianceError)) throw error;
  const { name, message, status = null, code = null, requestId = null, retryAfter = null, idempotencyKey } = error;
  return {
    error: {
      class: name,
      status,
      code,
      message,
      request_id: requestId,
      retry_after: retryAfter,
      idempotency_key: idempotencyKey,
    },
  };
}

async function run(line) {
  const { command, ...fields } = JSON.parse(line);
  try {
    return await COMMANDS[command === "send_batch" ? "sendBatch" : command](fields);
  } catch (error) {
    return failure(error);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await run(line))}\n`);
}
