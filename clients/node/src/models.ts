/**
 * Requests and answers, with the names of the HTTP API in camel case. Answers are read leniently: unknown
 * fields are ignored, unknown values are kept, a missing list is empty, and any other missing field is null.
 */

/** An address: `a@example.com` or `Name <a@example.com>`. */
export type Address = string;

/** An email to send. At least one of `text`, `html`, `attachments` and `template` is needed. */
export interface Email {
  from: Address;
  to: Address | readonly Address[];
  cc?: Address | readonly Address[] | undefined;
  bcc?: Address | readonly Address[] | undefined;
  replyTo?: Address | undefined;
  /** May be left out when the template has one. */
  subject?: string | undefined;
  text?: string | undefined;
  html?: string | undefined;
  /** A template's alias, instead of `text` and `html`. */
  template?: string | undefined;
  /** Values for the template's placeholders. */
  variables?: Readonly<Record<string, string | number | boolean>> | undefined;
  headers?: Readonly<Record<string, string>> | undefined;
  tags?: string | readonly string[] | undefined;
  attachments?: readonly Attachment[] | undefined;
  /** When to send it, up to 30 days ahead; a string is RFC 3339 with its time zone. */
  scheduledAt?: Date | string | undefined;
  /** Up to 20 values of your own, which come back in `Message` and in events. */
  metadata?: Readonly<Record<string, string>> | undefined;
}

interface AttachmentOptions {
  /** By default the appliance derives it from the file name. */
  contentType?: string | undefined;
  /** Marks an inline image, which the HTML shows as `cid:<contentId>`. */
  contentId?: string | undefined;
}

/** A web stream, by the part of it that is used. */
export interface WebStream {
  getReader(): { read(): Promise<{ done: boolean; value?: Uint8Array | undefined }> };
}

/** An attachment from bytes or from a stream, which is read once, before the first attempt. */
export interface ContentAttachment extends AttachmentOptions {
  filename: string;
  /** A Buffer or other bytes, a Node Readable or other async iterable of bytes, or a web ReadableStream. */
  content: Uint8Array | ArrayBuffer | AsyncIterable<Uint8Array | string> | WebStream;
  path?: undefined;
}

/** An attachment from a file. */
export interface FileAttachment extends AttachmentOptions {
  path: string | URL;
  /** By default the last part of the path. */
  filename?: string | undefined;
  content?: undefined;
}

export type Attachment = ContentAttachment | FileAttachment;

/** One of the known values, or another string that a newer appliance sends. */
type Open<Known extends string> = Known | (string & Record<never, never>);

export type MessageStatus = Open<"queued" | "delivered" | "partial" | "failed">;
export type RecipientStatus = Open<"scheduled" | "queued" | "deferred" | "delivered" | "bounced" | "failed">;
export type BillingStatus = Open<"reserved" | "settled" | "released">;
export type Source = Open<"api" | "smtp" | "test">;
export type EventType = Open<
  | "email.delivered"
  | "email.bounced"
  | "email.failed"
  | "email.delayed"
  | "email.late_bounced"
  | "email.complained"
  | "email.received"
  | "webhook.test"
>;

/** An attachment as the appliance took it. */
export interface AttachmentInfo {
  readonly filename: string | null;
  readonly contentType: string | null;
  readonly size: number | null;
  readonly contentId: string | null;
}

/** An accepted email. Accepted means queued on disk, not delivered. */
export interface SendResult {
  readonly id: string;
  readonly status: MessageStatus | null;
  readonly source: Source | null;
  readonly requestId: string | null;
  readonly from: string | null;
  readonly to: readonly string[];
  readonly cc: readonly string[];
  readonly bcc: readonly string[];
  readonly replyTo: string | null;
  readonly subject: string | null;
  readonly billingStatus: BillingStatus | null;
  readonly recipientCount: number | null;
  readonly creditsReserved: number | null;
  readonly headers: Readonly<Record<string, string>> | null;
  readonly tags: readonly string[];
  readonly attachments: readonly AttachmentInfo[];
  /** RFC 3339; null if the email is sent at once. */
  readonly scheduledAt: string | null;
  /** The key of this send, the caller's or the automatic one. */
  readonly idempotencyKey: string;
  /** Whether the appliance had accepted the same email with the same key before. */
  readonly replayed: boolean;
}

/** The result of one email of a batch: `id` if it was accepted, else `error` and `code`. */
export interface BatchItem {
  readonly index: number | null;
  readonly id: string | null;
  readonly status: MessageStatus | null;
  readonly recipientCount: number | null;
  readonly creditsReserved: number | null;
  readonly error: string | null;
  readonly code: string | null;
}

/** An accepted batch: one result per email, in order. */
export interface BatchResult {
  readonly results: readonly BatchItem[];
  readonly accepted: number | null;
  readonly refused: number | null;
  readonly requestId: string | null;
  /** The key of this batch, the caller's or the automatic one. */
  readonly idempotencyKey: string;
  /** Whether the appliance had accepted the same batch with the same key before. */
  readonly replayed: boolean;
}

/** A recipient and its result. Times are RFC 3339 strings. */
export interface Recipient {
  readonly id: string | null;
  readonly email: string | null;
  readonly status: RecipientStatus | null;
  readonly billingStatus: BillingStatus | null;
  readonly attemptCount: number | null;
  readonly lastSmtpCode: number | null;
  readonly lastSmtpResponse: string | null;
  readonly deliveredAt: string | null;
  readonly bouncedAt: string | null;
}

/** A message with the state of its recipients. */
export interface Message {
  readonly id: string;
  readonly status: MessageStatus | null;
  readonly source: Source | null;
  readonly from: string | null;
  readonly subject: string | null;
  readonly billingStatus: BillingStatus | null;
  readonly recipientCount: number | null;
  readonly creditsReserved: number | null;
  /** RFC 3339. */
  readonly createdAt: string | null;
  readonly recipients: readonly Recipient[];
  readonly requestId: string | null;
  /** RFC 3339; null if the message was not scheduled. */
  readonly scheduledAt: string | null;
  readonly metadata: Readonly<Record<string, string>> | null;
}

/** What a webhook tells about a recipient: only the fields that were there. */
export interface EventData {
  readonly emailId?: string;
  readonly recipientId?: string;
  readonly to?: string;
  /** The envelope sender. */
  readonly from?: string;
  readonly subject?: string;
  readonly smtpCode?: number;
  readonly smtpResponse?: string;
  /** What kind of refusal it is; only in events of bounces and delays. */
  readonly bounceClass?: string;
  /** The Message-ID header, without brackets. */
  readonly messageId?: string;
  readonly tags?: readonly string[];
  readonly metadata?: Readonly<Record<string, string>>;
  readonly stream?: string;
  /** True only in `webhook.test`. */
  readonly test?: boolean;
}

/** The result of SPF, DKIM or DMARC. */
export type CheckResult = Open<"pass" | "fail" | "softfail" | "neutral" | "none" | "temperror" | "permerror">;

/** A file attached to a received email. */
export interface ReceivedFile {
  readonly number: number | null;
  readonly filename: string | null;
  readonly contentType: string | null;
  readonly size: number | null;
  /** A link, valid for an hour from the event. */
  readonly url: string | null;
}

/** An email that the appliance received. Trust `from` only if `dmarc` is "pass"; do not answer if `autoSubmitted`. */
export interface ReceivedEmail {
  readonly inboundId: string | null;
  /** MAIL FROM, empty for a bounce, and the receiving addresses of the account. */
  readonly envelope: { readonly from: string | null; readonly to: readonly string[] };
  readonly from: string | null;
  readonly to: readonly string[];
  readonly cc: readonly string[];
  readonly replyTo: readonly string[];
  readonly subject: string | null;
  readonly text: string | null;
  readonly html: string | null;
  readonly headers: readonly { readonly name: string; readonly value: string }[];
  readonly messageId: string | null;
  readonly inReplyTo: string | null;
  /** The message of yours that it answers. */
  readonly inReplyToEmail: {
    readonly id: string | null;
    readonly metadata: Readonly<Record<string, string>> | null;
  } | null;
  readonly attachments: readonly ReceivedFile[];
  readonly spf: CheckResult | null;
  readonly dkim: CheckResult | null;
  readonly dmarc: CheckResult | null;
  readonly size: number | null;
  /** A link to the whole message, valid for an hour from the event. */
  readonly rawUrl: string | null;
  /** Whether a body was cut. */
  readonly truncated: boolean;
  /** Whether a program sent it. */
  readonly autoSubmitted: boolean;
}

/** A webhook's event. Repeated deliveries have the same id. */
export interface WebhookEvent {
  readonly id: string;
  readonly type: EventType;
  /** RFC 3339. */
  readonly createdAt: string | null;
  readonly data: EventData;
  /** Only in `email.received`. */
  readonly received?: ReceivedEmail;
}

/** An object of a JSON answer. */
export type JsonObject = Readonly<Record<string, unknown>>;

/** The object of a JSON text, or null when it is no JSON or no object. */
export function parseObject(text: string): JsonObject | null {
  try {
    return object(JSON.parse(text));
  } catch {
    return null;
  }
}

export function object(value: unknown): JsonObject | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject) : null;
}

export function string(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function number(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}

function list<T>(value: unknown, read: (item: unknown) => T | null): T[] {
  return Array.isArray(value) ? value.map(read).filter((item): item is T => item !== null) : [];
}

function stringMap(value: unknown): Record<string, string> | null {
  const entries = Object.entries(object(value) ?? {}).filter(
    (entry): entry is [string, string] => string(entry[1]) !== null,
  );
  return object(value) && Object.fromEntries(entries);
}

function attachmentInfo(value: unknown): AttachmentInfo | null {
  const fields = object(value);
  return (
    fields && {
      filename: string(fields["filename"]),
      contentType: string(fields["content_type"]),
      size: number(fields["size"]),
      contentId: string(fields["content_id"]),
    }
  );
}

/** The result of a send, or null when the object has no id. */
export function sendResult(fields: JsonObject, idempotencyKey: string, replayed: boolean): SendResult | null {
  const id = string(fields["id"]);
  if (!id) return null;
  return {
    id,
    status: string(fields["status"]),
    source: string(fields["source"]),
    requestId: string(fields["request_id"]),
    from: string(fields["from"]),
    to: list(fields["to"], string),
    cc: list(fields["cc"], string),
    bcc: list(fields["bcc"], string),
    replyTo: string(fields["reply_to"]),
    subject: string(fields["subject"]),
    billingStatus: string(fields["billing_status"]),
    recipientCount: number(fields["recipient_count"]),
    creditsReserved: number(fields["credits_reserved"]),
    headers: stringMap(fields["headers"]),
    tags: list(fields["tags"], string),
    attachments: list(fields["attachments"], attachmentInfo),
    scheduledAt: string(fields["scheduled_at"]),
    idempotencyKey,
    replayed,
  };
}

/** The result of a batch, or null when the object has no results. */
export function batchResult(fields: JsonObject, idempotencyKey: string, replayed: boolean): BatchResult | null {
  if (!Array.isArray(fields["results"])) return null;
  return {
    results: list(fields["results"], batchItem),
    accepted: number(fields["accepted"]),
    refused: number(fields["refused"]),
    requestId: string(fields["request_id"]),
    idempotencyKey,
    replayed,
  };
}

function batchItem(value: unknown): BatchItem | null {
  const fields = object(value);
  return (
    fields && {
      index: number(fields["index"]),
      id: string(fields["id"]),
      status: string(fields["status"]),
      recipientCount: number(fields["recipient_count"]),
      creditsReserved: number(fields["credits_reserved"]),
      error: string(fields["error"]),
      code: string(fields["code"]),
    }
  );
}

function recipient(value: unknown): Recipient | null {
  const fields = object(value);
  return (
    fields && {
      id: string(fields["id"]),
      email: string(fields["email"]),
      status: string(fields["status"]),
      billingStatus: string(fields["billing_status"]),
      attemptCount: number(fields["attempt_count"]),
      lastSmtpCode: number(fields["last_smtp_code"]),
      lastSmtpResponse: string(fields["last_smtp_response"]),
      deliveredAt: string(fields["delivered_at"]),
      bouncedAt: string(fields["bounced_at"]),
    }
  );
}

/** A message, or null when the object has no id. */
export function message(fields: JsonObject): Message | null {
  const id = string(fields["id"]);
  if (!id) return null;
  return {
    id,
    status: string(fields["status"]),
    source: string(fields["source"]),
    from: string(fields["from"]),
    subject: string(fields["subject"]),
    billingStatus: string(fields["billing_status"]),
    recipientCount: number(fields["recipient_count"]),
    creditsReserved: number(fields["credits_reserved"]),
    createdAt: string(fields["created_at"]),
    recipients: list(fields["recipients"], recipient),
    requestId: string(fields["request_id"]),
    scheduledAt: string(fields["scheduled_at"]),
    metadata: stringMap(fields["metadata"]),
  };
}

/** An event, or null when the object is none. */
export function webhookEvent(fields: JsonObject): WebhookEvent | null {
  const id = string(fields["id"]);
  const type = string(fields["type"]);
  const data = object(fields["data"]);
  if (!id || !type || !data) return null;
  const event = { id, type, createdAt: string(fields["created_at"]), data: eventData(data) };
  return type === "email.received" ? { ...event, received: receivedEmail(data) } : event;
}

function receivedEmail(fields: JsonObject): ReceivedEmail {
  const envelope = object(fields["envelope"]) ?? {};
  const answered = object(fields["in_reply_to_email"]);
  return {
    inboundId: string(fields["inbound_id"]),
    envelope: { from: string(envelope["from"]), to: list(envelope["to"], string) },
    from: string(fields["from"]),
    to: list(fields["to"], string),
    cc: list(fields["cc"], string),
    replyTo: list(fields["reply_to"], string),
    subject: string(fields["subject"]),
    text: string(fields["text"]),
    html: string(fields["html"]),
    headers: list(fields["headers"], (item) => {
      const name = string(object(item)?.["name"]);
      const value = string(object(item)?.["value"]);
      return name !== null && value !== null ? { name, value } : null;
    }),
    messageId: string(fields["message_id"]),
    inReplyTo: string(fields["in_reply_to"]),
    inReplyToEmail: answered && { id: string(answered["id"]), metadata: stringMap(answered["metadata"]) },
    attachments: list(fields["attachments"], receivedFile),
    spf: string(fields["spf"]),
    dkim: string(fields["dkim"]),
    dmarc: string(fields["dmarc"]),
    size: number(fields["size"]),
    rawUrl: string(fields["raw_url"]),
    truncated: fields["truncated"] === true,
    autoSubmitted: fields["auto_submitted"] === true,
  };
}

function receivedFile(value: unknown): ReceivedFile | null {
  const fields = object(value);
  return (
    fields && {
      number: number(fields["number"]),
      filename: string(fields["filename"]),
      contentType: string(fields["content_type"]),
      size: number(fields["size"]),
      url: string(fields["url"]),
    }
  );
}

function eventData(fields: JsonObject): EventData {
  const known = {
    emailId: string(fields["email_id"]),
    recipientId: string(fields["recipient_id"]),
    to: string(fields["to"]),
    from: string(fields["from"]),
    subject: string(fields["subject"]),
    smtpCode: number(fields["smtp_code"]),
    smtpResponse: string(fields["smtp_response"]),
    bounceClass: string(fields["bounce_class"]),
    messageId: string(fields["message_id"]),
    tags: Array.isArray(fields["tags"]) ? list(fields["tags"], string) : null,
    metadata: stringMap(fields["metadata"]),
    stream: string(fields["stream"]),
    test: typeof fields["test"] === "boolean" ? fields["test"] : null,
  };
  return Object.fromEntries(Object.entries(known).filter(([, value]) => value !== null));
}
