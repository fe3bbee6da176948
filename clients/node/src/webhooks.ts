/** Verification of webhooks: an event is returned only if one of the secrets signed exactly these bytes, recently. */

import { createHmac, timingSafeEqual } from "node:crypto";

import { ConfigurationError, SignatureInvalid } from "./errors.js";
import { parseObject, webhookEvent, type WebhookEvent } from "./models.js";

export interface VerifyOptions {
  /** How many seconds the signature's time may differ from now, in either direction; 300. */
  tolerance?: number | undefined;
  /** Unix seconds; by default the clock. */
  now?: number | undefined;
}

/**
 * The event of a webhook, or SignatureInvalid. `body` is the raw body as received, never JSON that was parsed and
 * written again; `header` is the Service-Signature header. During a rotation give both secrets. A secret that is
 * missing or empty throws a ConfigurationError, so that `process.env.…` can be passed as it is.
 */
export function verify(
  body: string | Uint8Array,
  header: string | readonly string[] | null | undefined,
  secrets: string | readonly (string | null | undefined)[] | null | undefined,
  { tolerance = 300, now = Math.floor(Date.now() / 1_000) }: VerifyOptions = {},
): WebhookEvent {
  const keys = typeof secrets === "string" ? [secrets] : (secrets ?? []);
  if (keys.length === 0 || !keys.every((key): key is string => Boolean(key)))
    throw new ConfigurationError("secrets: a webhook secret is missing or empty. Pass the secret of your webhook.");
  if (!(tolerance >= 0)) throw new ConfigurationError("tolerance must be a number of seconds, 0 or more");
  const { time, signatures } = parseHeader(typeof header === "string" ? header : (header ?? []).join());
  if (
    !matches(
      keys.map((key) => sign(body, time, key)),
      signatures,
    )
  )
    throw new SignatureInvalid("no signature matches the body");
  // Written so that a time that is not a number is refused.
  if (!(Math.abs(now - Number(time)) <= tolerance))
    throw new SignatureInvalid("the signature is too old or from the future");
  const fields = parseObject(Buffer.from(body).toString());
  const event = fields && webhookEvent(fields);
  if (!event) throw new SignatureInvalid("the signed body is not an event");
  return event;
}

/** `t=<seconds>,v1=<hex>`: exactly one `t`, any number of `v1`, in any order; other parts are ignored. */
function parseHeader(header: string): { time: string; signatures: Buffer[] } {
  const parts = header.split(",");
  const values = (name: string): string[] =>
    parts.filter((part) => part.startsWith(`${name}=`)).map((part) => part.slice(name.length + 1));
  const [time, ...others] = values("t");
  if (time === undefined || others.length > 0 || !/^\d{1,15}$/.test(time)) {
    throw new SignatureInvalid("the signature header is missing or malformed");
  }
  return {
    time,
    signatures: values("v1")
      .filter((value) => /^[0-9a-f]{64}$/i.test(value))
      .map((value) => Buffer.from(value, "hex")),
  };
}

function sign(body: string | Uint8Array, time: string, secret: string): Buffer {
  return createHmac("sha256", secret).update(`${time}.`).update(body).digest();
}

/** Compares all with all in constant time: the duration does not tell which one matched. */
function matches(expected: readonly Buffer[], signatures: readonly Buffer[]): boolean {
  return expected.flatMap((own) => signatures.map((given) => timingSafeEqual(own, given))).includes(true);
}
