/** `appliance dev` for tests end to end: starts it on free ports, waits for messages, and stops it. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

import { MailAppliance } from "./client.js";

/** A message in the inbox. `text` or `html` is null if the message has no such part. */
export interface ReceivedEmail {
  readonly id: string;
  readonly from: string;
  readonly subject: string;
  readonly recipients: readonly { readonly email: string }[];
  readonly text: string | null;
  readonly html: string | null;
  readonly headers: readonly { readonly name: string; readonly value: string }[];
}

interface Addresses {
  readonly url: string;
  readonly smtp_host: string;
  readonly smtp_port: number;
}

/** A running `appliance dev`. Messages are in memory. */
export class DevAppliance {
  readonly url: string;
  readonly smtpHost: string;
  readonly smtpPort: number;
  readonly #process: ChildProcess;

  private constructor(process: ChildProcess, addresses: Addresses) {
    this.#process = process;
    this.url = addresses.url;
    this.smtpHost = addresses.smtp_host;
    this.smtpPort = addresses.smtp_port;
  }

  /** Start it and wait until it listens. `command` is the program; default: `$APPLIANCE_COMMAND` or `appliance`. */
  static async start(command = process.env["APPLIANCE_COMMAND"] ?? "appliance"): Promise<DevAppliance> {
    const [program = "", ...words] = command.split(" ");
    const options = ["dev", "--port", "0", "--smtp-port", "0", "--json"];
    const { APPLIANCE_CONFIG: _, NOTIFY_SOCKET: __, ...env } = process.env;
    const started = spawn(program, [...words, ...options], { env, stdio: ["ignore", "pipe", "inherit"] });
    let cause: Error | undefined;
    started.once("error", (error) => (cause = error));
    for await (const line of createInterface({ input: started.stdout })) {
      return new DevAppliance(started, JSON.parse(line) as Addresses);
    }
    throw new Error(`${command} dev did not start`, { cause });
  }

  /** A client that sends to it. */
  client(): MailAppliance {
    return new MailAppliance({ baseUrl: this.url, token: "dev" });
  }

  /** The newest message to this address or domain, with this part of its subject. Throws if none comes in `timeout` ms. */
  async wait(filters: { to?: string; subject?: string } = {}, { timeout = 10_000 } = {}): Promise<ReceivedEmail> {
    const query = new URLSearchParams({ ...filters, wait: `${Math.ceil(timeout / 1000)}s`, limit: "1" });
    const { emails } = (await this.#call("GET", `/v1/emails?${query}`)) as { emails: ReceivedEmail[] };
    const [email] = emails;
    if (email === undefined) throw new Error(`no message with ${JSON.stringify(filters)} within ${timeout} ms`);
    const body = (await this.#call("GET", `/v1/emails/${email.id}/body`)) as ReceivedEmail;
    return { ...email, text: body.text, html: body.html, headers: body.headers };
  }

  /** Delete all messages. */
  async clear(): Promise<void> {
    await this.#call("DELETE", "/v1/emails");
  }

  /** Stop the server. */
  async stop(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const ended = once(this.#process, "exit");
    this.#process.kill();
    await ended;
  }

  async #call(method: string, path: string): Promise<unknown> {
    const answer = await fetch(this.url + path, { method });
    if (!answer.ok) throw new Error(`${method} ${path}: ${await answer.text()}`);
    return answer.json();
  }
}
