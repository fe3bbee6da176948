/**
 * A nodemailer transport that sends through the appliance's HTTP interface:
 * `nodemailer.createTransport(mailApplianceTransport({ baseUrl, username, password }))`.
 *
 * The message goes as JSON, not as MIME. What JSON cannot carry is refused with a ConfigurationError that names it;
 * nothing that a receiver would see is dropped. Transfer encodings are the appliance's choice.
 */

import { MailAppliance } from "./client.js";
import type { MailApplianceOptions } from "./configuration.js";
import { ConfigurationError } from "./errors.js";
import type { Attachment, Email, SendResult } from "./models.js";
import { VERSION } from "./version.js";

/** Fields of a nodemailer message that have no counterpart in JSON. */
const REFUSED = [
  "raw",
  "amp",
  "watchHtml",
  "icalEvent",
  "alternatives",
  "sender",
  "envelope",
  "messageId",
  "date",
  "dkim",
  "dsn",
] as const;
const REFUSED_IN_ATTACHMENT = ["raw", "headers"] as const;
const METADATA = "x-service-metadata";
const PRIORITIES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  high: { "X-Priority": "1 (Highest)", "X-MSMail-Priority": "High", Importance: "High" },
  low: { "X-Priority": "5 (Lowest)", "X-MSMail-Priority": "Low", Importance: "Low" },
};

/** What `sendMail` returns. */
export interface SentMessageInfo {
  /** The appliance's id of the message, for `MailAppliance.get`. */
  messageId: string;
  envelope: { from: string; to: string[] };
  /** All recipients: the appliance accepts a message whole or not at all. */
  accepted: string[];
  rejected: string[];
  pending: string[];
  response: string;
  idempotencyKey: string;
  replayed: boolean;
}

/** The part of nodemailer's MailMessage that is used. */
export interface NodemailerMessage {
  data: object;
  message: { getAddresses(): object; getEnvelope(): { from: string | false; to: string[] } };
  normalize(callback: (error?: Error | null, data?: object) => void): void;
}

/** A transport for `nodemailer.createTransport`. */
export interface MailApplianceTransport {
  name: string;
  version: string;
  send(mail: NodemailerMessage, callback: (error: Error | null, info: SentMessageInfo) => void): void;
}

interface ParsedAddress {
  name?: string;
  address?: string;
  group?: unknown;
}

interface Content {
  content?: unknown;
  path?: unknown;
  href?: unknown;
}

interface MailAttachment extends Content {
  filename?: string | false;
  contentType?: string;
  contentDisposition?: string;
  cid?: string;
  encoding?: string;
}

/** A message's data, after nodemailer has normalized it: addresses are parsed, contents are read. */
interface MailData {
  from?: ParsedAddress;
  to?: ParsedAddress[];
  cc?: ParsedAddress[];
  bcc?: ParsedAddress[];
  replyTo?: ParsedAddress[];
  subject?: string;
  text?: unknown;
  html?: unknown;
  headers?: object;
  list?: object;
  references?: unknown;
  inReplyTo?: unknown;
  priority?: string;
  xMailer?: unknown;
  attachments?: MailAttachment[];
  disableFileAccess?: boolean;
  disableUrlAccess?: boolean;
  normalizedHeaders?: Record<string, string>;
}

/** The transport, on a client or on the options of one. */
export function mailApplianceTransport(options: MailAppliance | MailApplianceOptions = {}): MailApplianceTransport {
  const client = options instanceof MailAppliance ? options : new MailAppliance(options);
  return {
    name: "MailAppliance",
    version: VERSION,
    send(mail, callback) {
      send(client, mail).then(
        (info) => callback(null, info),
        (error: Error) => (callback as (error: Error) => void)(error),
      );
    },
  };
}

async function send(client: MailAppliance, mail: NodemailerMessage): Promise<SentMessageInfo> {
  const given = mail.data as MailData;
  refuseWhatJsonCannotCarry(mail);
  // nodemailer writes what it has read into the attachments, which are the caller's objects: it gets copies.
  if (given.attachments) given.attachments = given.attachments.map(prepared);
  const data = await normalized(mail);
  const headers = headersOf(data);
  const idempotencyKey = taken(headers, "Idempotency-Key");
  const tags = taken(headers, "X-Service-Tag")
    ?.split(",")
    .map((tag) => tag.trim());
  const scheduledAt = taken(headers, "X-Service-Scheduled-At");
  const result = await client.send(
    {
      from: address(data.from, "from"),
      to: addresses(data.to, "to"),
      cc: addresses(data.cc, "cc"),
      bcc: addresses(data.bcc, "bcc"),
      replyTo: data.replyTo && data.replyTo.length > 0 ? address(data.replyTo[0], "replyTo") : undefined,
      subject: data.subject,
      text: textOf(data.text),
      html: textOf(data.html),
      headers: Object.fromEntries(headers.values()),
      tags,
      attachments: data.attachments?.map(attachment),
      scheduledAt,
      metadata: metadataOf(data),
    } satisfies Email,
    { idempotencyKey },
  );
  return sentInfo(result, mail.message.getEnvelope());
}

function refuseWhatJsonCannotCarry(mail: NodemailerMessage): void {
  const data = mail.data as MailData & Record<(typeof REFUSED)[number], unknown>;
  for (const name of REFUSED) if (isGiven(data[name])) throw refused(name);
  const parsed = mail.message.getAddresses() as { from?: unknown[]; "reply-to"?: unknown[] };
  if ((parsed.from?.length ?? 0) > 1) throw refused("from with several addresses");
  if ((parsed["reply-to"]?.length ?? 0) > 1) throw refused("replyTo with several addresses");
  refuseAccess(data, data.text, "text");
  refuseAccess(data, data.html, "html");
  data.attachments?.forEach((each, index) => {
    const name = `attachments[${index}]`;
    for (const field of REFUSED_IN_ATTACHMENT)
      if (isGiven((each as Record<string, unknown>)[field])) throw refused(`${name}.${field}`);
    if (each.filename === false) throw refused(`${name} without a filename`);
    if (each.contentDisposition === "inline" && !each.cid)
      throw refused(`${name}.contentDisposition "inline" without cid`);
    refuseAccess(data, each, name);
  });
}

function isGiven(value: unknown): boolean {
  return Array.isArray(value) ? value.length > 0 : value !== undefined && value !== null && value !== false;
}

function refused(what: string): ConfigurationError {
  return new ConfigurationError(`the mail appliance's HTTP interface cannot carry ${what}; send this message by SMTP`);
}

/** Older nodemailers do not heed disableFileAccess and disableUrlAccess when they normalize a message. */
function refuseAccess(data: MailData, value: unknown, name: string): void {
  const { path, href } = (typeof value === "object" && value !== null ? value : {}) as Content;
  const location = path || href;
  if (!location || /^data:/i.test(String(location))) return;
  const isUrl = !path || /^https?:/i.test(String(path));
  if (isUrl ? data.disableUrlAccess : data.disableFileAccess) {
    throw new ConfigurationError(
      `${name}: ${isUrl ? "disableUrlAccess" : "disableFileAccess"} forbids to read ${String(location)}`,
    );
  }
}

/** A copy of an attachment; without content nodemailer would take the attachment itself for it. */
function prepared({ ...copy }: MailAttachment): MailAttachment {
  if (!copy.path && !copy.href && !copy.content) copy.content = Buffer.alloc(0);
  return copy;
}

function normalized(mail: NodemailerMessage): Promise<MailData> {
  return new Promise((resolve, reject) => {
    mail.normalize((error, data) => (error ? reject(error) : resolve(data as MailData)));
  });
}

function addresses(list: ParsedAddress[] | null | undefined, field: string): string[] {
  return (list ?? []).map((each) => address(each, field));
}

function address(parsed: ParsedAddress | null | undefined, field: string): string {
  if (parsed?.group) throw refused(`a group in ${field}`);
  if (!parsed?.address) throw new ConfigurationError(`${field} has no address`);
  return parsed.name ? `"${parsed.name.replace(/["\\]/g, "\\$&")}" <${parsed.address}>` : parsed.address;
}

/** Empty content stays as nodemailer got it: an object, or nothing. */
function textOf(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function attachment({ filename, contentType, cid, content, encoding }: MailAttachment): Attachment {
  const bytes =
    typeof content === "string" ? Buffer.from(content, encoding === "base64" ? "base64" : "utf8") : (content as Buffer);
  return { filename: filename as string, content: bytes, contentType, contentId: cid?.replace(/[<>]/g, "") };
}

/** The entries of the X-Service-Metadata headers, `key=value` in each. */
function metadataOf(data: MailData): Record<string, string> | undefined {
  const entries: [string, string][] = [];
  for (const [name, value] of headerEntries(data)) {
    if (name.toLowerCase() !== METADATA) continue;
    for (const each of [value].flat().filter(isGiven)) {
      const [, key, text] = /^([^=]*)=(.*)$/s.exec(headerValue(each)) ?? [];
      if (key === undefined || text === undefined) throw refused("X-Service-Metadata without key=value");
      if (entries.some(([other]) => other === key.trim())) throw refused(`the metadata ${key.trim()} twice`);
      entries.push([key.trim(), text.trim()]);
    }
  }
  return entries.length > 0 ? Object.fromEntries(entries) : undefined;
}

/** The custom headers by their names in lower case, as [name, value]. */
function headersOf(data: MailData): Map<string, [string, string]> {
  const headers = new Map<string, [string, string]>();
  for (const [name, value] of headerEntries(data)) {
    const values = [value].flat().filter((each) => each !== undefined && each !== null);
    const key = name.toLowerCase();
    if (key === METADATA) continue;
    if (values.length > 1 || (values.length > 0 && headers.has(key))) throw refused(`several ${name} headers`);
    if (values.length > 0) headers.set(key, [name, headerValue(values[0])]);
  }
  return headers;
}

function* headerEntries({
  headers,
  list,
  priority,
  xMailer,
  references,
  inReplyTo,
  normalizedHeaders,
}: MailData): Generator<[string, unknown]> {
  if (Array.isArray(headers))
    for (const { key, value } of headers as { key: string; value: unknown }[]) yield [key, value];
  else yield* Object.entries(headers ?? {});
  yield* Object.entries(PRIORITIES[String(priority).toLowerCase()] ?? {});
  if (typeof xMailer === "string") yield ["X-Mailer", xMailer];
  if (references) yield ["References", normalizedHeaders?.["references"]];
  if (inReplyTo) yield ["In-Reply-To", normalizedHeaders?.["in-reply-to"]];
  for (const name of Object.keys(list ?? {}).map((key) => `list-${key.toLowerCase().trim()}`)) {
    yield [name.replace(/(^|-)[a-z]/g, (letter) => letter.toUpperCase()), normalizedHeaders?.[name]];
  }
}

/** A value, or the value of `{ prepared: true, value }`. */
function headerValue(value: unknown): string {
  return String(typeof value === "object" && value !== null && "value" in value ? value.value : value);
}

/** A header's value, which is then no longer among them. */
function taken(headers: Map<string, [string, string]>, name: string): string | undefined {
  const found = headers.get(name.toLowerCase());
  headers.delete(name.toLowerCase());
  return found?.[1];
}

function sentInfo(
  { id, idempotencyKey, replayed }: SendResult,
  { from, to }: { from: string | false; to: string[] },
): SentMessageInfo {
  const envelope = { from: from || "", to };
  return {
    messageId: id,
    envelope,
    accepted: to,
    rejected: [],
    pending: [],
    response: `queued as ${id}`,
    idempotencyKey,
    replayed,
  };
}
