/** From the caller's options and the environment to checked settings. Pure: the environment is an argument. */

import { ConfigurationError } from "./errors.js";
import type { Fetch } from "./transport.js";

const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds; setTimeout takes a longer one for 1 ms

/** What a client is made from. What is absent or an empty string comes from the environment. */
export interface MailApplianceOptions {
  /** The appliance's address, by default `MAIL_APPLIANCE_URL`. */
  baseUrl?: string | URL | undefined;
  /** The SMTP username, by default `MAIL_APPLIANCE_USERNAME`. */
  username?: string | undefined;
  /** The SMTP password, by default `MAIL_APPLIANCE_PASSWORD`. */
  password?: string | undefined;
  /** An API key or a JWT, instead of username and password; by default `MAIL_APPLIANCE_TOKEN`. */
  token?: string | undefined;
  /** How often a request is tried again; 3. */
  retries?: number | undefined;
  /** Milliseconds until a connection is made, TLS included; 5000. See the README for what fetch allows. */
  connectTimeout?: number | undefined;
  /** Milliseconds for one attempt, until the whole answer is read; 30000. */
  timeout?: number | undefined;
  /** What sends the requests; by default `globalThis.fetch`, looked up at each call. */
  fetch?: Fetch | undefined;
}

/** Checked settings. */
export interface Settings {
  /** Without a trailing slash. */
  readonly baseUrl: string;
  readonly authorization: string;
  readonly retries: number;
  readonly connectTimeout: number;
  readonly timeout: number;
}

type Environment = Readonly<Record<string, string | undefined>>;

/** The settings, or a ConfigurationError that names what is missing or wrong. */
export function settings(options: MailApplianceOptions, environment: Environment): Settings {
  return {
    baseUrl: baseUrl(String(options.baseUrl || environment["MAIL_APPLIANCE_URL"] || "")),
    authorization: authorization(options, environment),
    retries: retries(options.retries ?? 3),
    connectTimeout: milliseconds("connectTimeout", options.connectTimeout ?? 5_000),
    timeout: milliseconds("timeout", options.timeout ?? 30_000),
  };
}

function baseUrl(value: string): string {
  if (!value) throw missing("baseUrl", "MAIL_APPLIANCE_URL");
  // The URL parser repairs what has no host ("http:///path", "http:host"); a mistake is better told.
  const url = /^https?:\/\/[^/?#]/i.test(value) ? parsed(value) : null;
  if (!url || url.username || url.password || /[?#]/.test(value)) {
    throw new ConfigurationError(
      "baseUrl (MAIL_APPLIANCE_URL) must be http or https with a host, without user, query or fragment",
    );
  }
  return (url.origin + url.pathname).replace(/\/+$/, "");
}

function parsed(value: string): URL | null {
  try {
    return new URL(value);
  } catch {
    return null;
  }
}

/** Given credentials win over all of the environment's; there, a token wins over a pair. */
function authorization({ username, password, token }: MailApplianceOptions, environment: Environment): string {
  if (token && (username || password)) {
    throw new ConfigurationError("give either token (MAIL_APPLIANCE_TOKEN) or username and password, not both");
  }
  if (token) return bearer(token);
  const { MAIL_APPLIANCE_TOKEN, MAIL_APPLIANCE_USERNAME, MAIL_APPLIANCE_PASSWORD } = environment;
  if (!username && !password && MAIL_APPLIANCE_TOKEN) return bearer(MAIL_APPLIANCE_TOKEN);
  return basic(username || MAIL_APPLIANCE_USERNAME, password || MAIL_APPLIANCE_PASSWORD);
}

function bearer(token: string): string {
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new ConfigurationError("token (MAIL_APPLIANCE_TOKEN) must be printable ASCII without spaces");
  }
  return `Bearer ${token}`;
}

function basic(username: string | undefined, password: string | undefined): string {
  if (!username && !password) {
    throw missing(
      "a token, or username and password,",
      "MAIL_APPLIANCE_TOKEN, or MAIL_APPLIANCE_USERNAME and MAIL_APPLIANCE_PASSWORD",
    );
  }
  if (!username) throw missing("username", "MAIL_APPLIANCE_USERNAME");
  if (!password) throw missing("password", "MAIL_APPLIANCE_PASSWORD");
  // RFC 7617 2: the first colon ends the username.
  if (username.includes(":"))
    throw new ConfigurationError("username (MAIL_APPLIANCE_USERNAME) must not contain a colon");
  return `Basic ${Buffer.from(`${username}:${password}`).toString("base64")}`;
}

function missing(option: string, variable: string): ConfigurationError {
  return new ConfigurationError(`${option} is missing: give it as an option or set ${variable}`);
}

function retries(value: number): number {
  if (!Number.isSafeInteger(value) || value < 0)
    throw new ConfigurationError("retries must be a whole number, 0 or more");
  return value;
}

/** A time that a timer can keep. */
function milliseconds(name: string, value: number): number {
  if (!(value > 0 && value <= LONGEST_TIMER)) {
    throw new ConfigurationError(`${name} must be a number of milliseconds above 0 and at most ${LONGEST_TIMER}`);
  }
  return value;
}
