// Examples to paste into a shell, a program or a mail client's settings.
import { code } from "./pieces.js";
import { tabs } from "./tabs.js";

const TO = "someone@example.net";
const SUBJECT = "It works";
const TEXT = "Sent through the mail appliance.";

const quoted = JSON.stringify; // JSON strings are also valid string literals in Python, JavaScript, Go and Ruby
const inShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const inPhp = (text) => `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;

const curl = (url, key, from) => `curl ${url}/emails \\
  -H "Authorization: Bearer ${key}" \\
  -H 'Content-Type: application/json' \\
  -H "Idempotency-Key: first-$(date +%s)" \\
  -d ${inShell(JSON.stringify({ from, to: TO, subject: SUBJECT, text: TEXT }, null, 2))}`;

const python = (url, key, from) => `from mail_appliance import Client

with Client(
    ${quoted(url)},
    token=${quoted(key)},
) as mail:
    sent = mail.send(
        from_=${quoted(from)},
        to=${quoted(TO)},
        subject=${quoted(SUBJECT)},
        text=${quoted(TEXT)},
    )
    print(sent.id, sent.status)
`;

const node = (url, key, from) => `import { MailAppliance } from "mail-appliance";

const mail = new MailAppliance({
  baseUrl: ${quoted(url)},
  token: ${quoted(key)},
});
const sent = await mail.send({
  from: ${quoted(from)},
  to: ${quoted(TO)},
  subject: ${quoted(SUBJECT)},
  text: ${quoted(TEXT)},
});
console.log(sent.id, sent.status);
`;

const go = (url, key, from) => `package main

import (
	"context"
	"fmt"
	"log"

	"mailappliance"
)

func main() {
	mail, err := mailappliance.New(
		${quoted(url)},
		mailappliance.Token(${quoted(key)}),
	)
	if err != nil {
		log.Fatal(err)
	}
	sent, err := mail.Send(context.Background(), mailappliance.Email{
		From:    ${quoted(from)},
		To:      []string{${quoted(TO)}},
		Subject: ${quoted(SUBJECT)},
		Text:    ${quoted(TEXT)},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sent.ID, sent.Status)
}
`;

const php = (url, key, from) => `<?php
require 'vendor/autoload.php';

use MailAppliance\\Client;

$mail = Client::token(
    ${inPhp(url)},
    ${inPhp(key)},
);
$sent = $mail->send([
    'from' => ${inPhp(from)},
    'to' => ${inPhp(TO)},
    'subject' => ${inPhp(SUBJECT)},
    'text' => ${inPhp(TEXT)},
]);
echo "{$sent->id} {$sent->status}\\n";
`;

const ruby = (url, key, from) => `require "mail_appliance"

mail = MailAppliance::Client.new(
  ${quoted(url)},
  token: ${quoted(key)}
)
sent = mail.send_email(
  from: ${quoted(from)},
  to: ${quoted(TO)},
  subject: ${quoted(SUBJECT)},
  text: ${quoted(TEXT)}
)
puts "#{sent.id} #{sent.status}"
`;

/** The first message in each language, as [name, code], for the URL of this page. */
export const firstMessage = (domain, key = "$KEY") =>
	[
		["curl", curl],
		["Python", python],
		["Node", node],
		["Go", go],
		["PHP", php],
		["Ruby", ruby],
	].map(([name, written]) => [name, written(location.origin, key, `hello@${domain}`)]);

/** The same as tabs; without a `key`, a placeholder is shown. */
export const firstMessageTabs = (domain, key) =>
	tabs(
		"Language",
		"language",
		firstMessage(domain, key).map(([name, text]) => [name, code(text, `the ${name} code`, "lines")]),
	);

/** The SMTP submission ports in words. */
export const ports = (service) =>
	[
		...service.smtp_ports.map((port) => `${port} (STARTTLS)`),
		...service.smtp_tls_ports.map((port) => `${port} (TLS)`),
	].join(" or ");

/** Settings for a mail client. */
export function smtp(service, username) {
	return [["Server", service.smtp_host], ["Port", ports(service)], username && ["Username", username]].filter(Boolean);
}
