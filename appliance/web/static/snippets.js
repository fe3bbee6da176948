// Examples to paste into a shell or a program.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A curl line that sends a message, by the way on which this very page was reached. */
export function curl(domain, key = "$KEY") {
	const message = JSON.stringify(
		{
			from: `hello@${domain}`,
			to: "someone@example.net",
			subject: "It works",
			text: "Sent through the mail appliance.",
		},
		null,
		2,
	);
	return [
		`curl ${location.origin}/emails`,
		`-H "Authorization: Bearer ${key}"`,
		"-H 'Content-Type: application/json'",
		'-H "Idempotency-Key: first-$(date +%s)"',
		`-d ${quoted(message)}`,
	].join(" \\\n  ");
}

/** The ports that take mail by SMTP, in words. */
export const ports = (service) =>
	[
		...service.smtp_ports.map((port) => `${port} (STARTTLS)`),
		...service.smtp_tls_ports.map((port) => `${port} (TLS)`),
	].join(" or ");

/** Names and values for a mail program. */
export function smtp(service, username) {
	return [["Server", service.smtp_host], ["Port", ports(service)], username && ["Username", username]].filter(Boolean);
}
