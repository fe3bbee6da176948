/** The JSON bodies of requests. Attachments are read here, once, so that every attempt sends the same bytes. */

import { readFile } from "node:fs/promises";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";

import { ConfigurationError } from "./errors.js";
import type { Attachment, Email, WebStream } from "./models.js";

/** Names that differ from the interface's; any other is sent as it is, and the appliance judges it. */
const EMAIL_NAMES: Names = { replyTo: "reply_to", scheduledAt: "scheduled_at" };
const ATTACHMENT_NAMES: Names = { contentType: "content_type", contentId: "content_id" };

type Names = Readonly<Record<string, string>>;

/** The send that a body is made for: its key is shown on errors, its signal ends the reading. */
export interface SendContext {
  readonly idempotencyKey: string;
  readonly signal: AbortSignal | undefined;
}

/** The body of one email. */
export function encodeEmail(email: Email, context: SendContext): Promise<string> {
  return encode(() => emailFields(email, "", context.signal), context);
}

/** The body of a batch. */
export function encodeBatch(
  emails: readonly Email[],
  onError: string | undefined,
  context: SendContext,
): Promise<string> {
  return encode(async () => {
    const encoded: unknown[] = [];
    for (const [index, email] of emails.entries()) {
      encoded.push(await emailFields(email, `emails[${index}].`, context.signal));
    }
    return { emails: encoded, on_error: onError };
  }, context);
}

/** A time as the interface has it; a RangeError for a Date that is not valid. */
export function timeText(time: Date | string): string {
  return time instanceof Date ? time.toISOString() : time;
}

/** The body as JSON, or a ConfigurationError when it cannot be made. */
async function encode(fields: () => Promise<object>, context: SendContext): Promise<string> {
  try {
    return JSON.stringify(await fields());
  } catch (error) {
    context.signal?.throwIfAborted();
    const { idempotencyKey } = context;
    throw new ConfigurationError(error instanceof Error ? error.message : String(error), {
      idempotencyKey,
      cause: error,
    });
  }
}

/** `place` is where the email is, for errors. */
async function emailFields(
  { attachments, ...rest }: Email,
  place: string,
  signal: AbortSignal | undefined,
): Promise<Record<string, unknown>> {
  const fields = renamed(rest, EMAIL_NAMES);
  if (rest.scheduledAt !== undefined) fields["scheduled_at"] = timeText(rest.scheduledAt);
  if (attachments) {
    const encoded: unknown[] = (fields["attachments"] = []);
    for (const [index, attachment] of attachments.entries()) {
      encoded.push(await encodeAttachment(attachment, `${place}attachments[${index}]`, signal));
    }
  }
  return fields;
}

async function encodeAttachment(
  { content, path, ...rest }: Attachment,
  name: string,
  signal: AbortSignal | undefined,
): Promise<unknown> {
  if ((content === undefined) === (path === undefined)) throw new TypeError(`${name} needs either content or path`);
  const fields = renamed(rest, ATTACHMENT_NAMES);
  if (path !== undefined) fields["filename"] ??= basename(path instanceof URL ? fileURLToPath(path) : path);
  const bytes = path === undefined ? await readContent(content, name, signal) : await readFile(path);
  fields["content"] = bytes.toString("base64");
  return fields;
}

function renamed(fields: object, names: Names): Record<string, unknown> {
  const result: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined) continue;
    const target = Object.hasOwn(names, name) ? (names[name] as string) : name;
    if (Object.hasOwn(result, target)) throw new TypeError(`${target} is given twice`);
    result[target] = value;
  }
  return result;
}

async function readContent(
  content: Attachment["content"],
  name: string,
  signal: AbortSignal | undefined,
): Promise<Buffer> {
  if (content instanceof Uint8Array) return Buffer.from(content.buffer, content.byteOffset, content.byteLength);
  if (content instanceof ArrayBuffer) return Buffer.from(content);
  const stream = chunks(content);
  // A string may be text or base64: refused, because a wrong guess would send a broken file.
  if (!stream)
    throw new TypeError(`${name}.content must be bytes or a stream; make bytes of a string with Buffer.from`);
  const parts: Uint8Array[] = [];
  for await (const chunk of stream) {
    signal?.throwIfAborted();
    if (typeof chunk !== "string" && !(chunk instanceof Uint8Array))
      throw new TypeError(`${name}.content must give bytes or strings`);
    parts.push(typeof chunk === "string" ? Buffer.from(chunk) : chunk);
  }
  return Buffer.concat(parts);
}

function chunks(content: unknown): AsyncIterable<unknown> | null {
  if (typeof content !== "object" || content === null) return null;
  if (Symbol.asyncIterator in content) return content as AsyncIterable<unknown>;
  return "getReader" in content ? webChunks(content as WebStream) : null;
}

async function* webChunks(stream: WebStream): AsyncGenerator<unknown> {
  const reader = stream.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
}
