/** TypeScript that uses the whole public interface; compiled by package.test.mjs as ES module and as CommonJS. */

import { createReadStream } from "node:fs";
import { Readable } from "node:stream";
import {
  ApiError,
  ConnectionFailed,
  InsufficientCredits,
  MailAppliance,
  verify,
  type Attachment,
  type BatchResult,
  type Email,
  type ErrorCode,
  type Fetch,
  type Message,
  type SendResult,
  type WebhookEvent,
} from "mail-appliance";
import { mailApplianceTransport, type SentMessageInfo } from "mail-appliance/nodemailer";
import { FakeMailAppliance, type SentEmail } from "mail-appliance/testing";
import { createTransport } from "nodemailer";

const ownFetch: Fetch = globalThis.fetch;

export async function use(
  mail: MailAppliance = new MailAppliance({ baseUrl: "http://a", token: "t", fetch: ownFetch }),
): Promise<string> {
  const attachments: Attachment[] = [
    { filename: "a", content: Buffer.from("a") },
    { filename: "a", content: new Uint8Array(1), contentId: "a", contentType: "image/png" },
    { filename: "a", content: createReadStream("a") },
    { filename: "a", content: Readable.toWeb(createReadStream("a")) },
    { filename: "a", content: new Blob(["a"]).stream() },
    { path: "a" },
    { path: new URL("file:///a"), filename: "b" },
  ];
  const email: Email = {
    from: "a@b.c",
    to: ["d@e.f"],
    replyTo: "a@b.c",
    subject: "s",
    text: "t",
    variables: { a: 1 },
    attachments,
  };
  try {
    const sent: SendResult = await mail.send(email, { idempotencyKey: "k", signal: AbortSignal.timeout(1) });
    const message: Message = await mail.wait(sent.id, { timeout: 1000 });
    if (message.status === "delivered")
      return message.recipients.map(({ lastSmtpResponse }) => lastSmtpResponse ?? "").join();
    const batch: BatchResult = await mail.sendBatch([email, { ...email, scheduledAt: new Date(), metadata: { a: "b" } }], { onError: "skip" });
    for (const { id, error, code } of batch.results) if (id) await mail.reschedule(id, new Date()); else return `${error} ${code}`;
    if ((await mail.cancel(sent.id)).metadata?.["a"]) return "";
    return sent.idempotencyKey + String(sent.replayed) + (await mail.get(sent.id)).id;
  } catch (error) {
    if (error instanceof InsufficientCredits) return error.code ?? "";
    if (error instanceof ApiError) return `${error.status} ${error.code} ${error.requestId} ${error.retryAfter}`;
    if (error instanceof ConnectionFailed) return error.idempotencyKey ?? "";
    throw error;
  }
}

export function webhook(body: Buffer, headers: NodeJS.Dict<string | string[]>): number | undefined {
  const event: WebhookEvent = verify(body, headers["service-signature"], ["whsec_a", "whsec_b"], { tolerance: 60 });
  return event.type === "email.bounced" ? event.data.smtpCode : undefined;
}

export async function nodemailer(): Promise<void> {
  const transport = mailApplianceTransport(new FakeMailAppliance());
  await createTransport(transport).sendMail({ from: "a@b.c", to: "d@e.f", text: "t" });
  const handled: Parameters<typeof transport.send>[1] = (_error, info: SentMessageInfo) => void info.replayed;
  void handled;
}

export async function fake(): Promise<readonly SentEmail[]> {
  const mail = new FakeMailAppliance();
  const code: ErrorCode = "rate_limited";
  mail.failNext(code);
  await use(mail);
  return mail.sent;
}

// @ts-expect-error: text is ambiguous as content
export const text: Attachment = { filename: "a", content: "text" };
// @ts-expect-error: an email has a sender
export const incomplete: Email = { to: "a@b.c" };
// @ts-expect-error: the ways are known
void new FakeMailAppliance().sendBatch([], { onError: "ignore" });
// @ts-expect-error: the codes are known
new FakeMailAppliance().failNext("nonsense");
