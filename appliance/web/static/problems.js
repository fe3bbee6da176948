// What the reply of a server means, and what to do next: for recipients that did not get their mail.
import { del, post } from "./api.js";
import { h, path, query, toast } from "./dom.js";
import { confirmed } from "./form.js";
import { button } from "./pieces.js";
import { count } from "./time.js";

// By the second and third number of an enhanced status code (RFC 3463).
const CODES = {
	1.1: "There is no mailbox with this address.",
	1.2: "The domain of the address does not exist, or takes no mail.",
	1.3: "The server does not accept the way the address is written.",
	1.6: "The mailbox has moved, and left no new address.",
	1.8: "The server does not accept the sender's domain.",
	"1.10": "The domain says in DNS that it takes no mail.",
	2.1: "The mailbox is disabled, or takes no mail.",
	2.2: "The mailbox is full.",
	2.3: "The message is larger than this mailbox takes.",
	3.4: "The message is larger than the server takes.",
	4.1: "The server did not answer.",
	4.4: "No way to the server was found.",
	4.7: "It was tried until the time for it was over.",
	7.1: "A rule of the server refuses the message, or this sender.",
	"7.20": "No DKIM signature passed.",
	7.23: "SPF did not pass: this server's address is not in the sender's SPF record.",
	7.25: "The sending address has no reverse name, or another one than it says.",
	7.26: "Neither SPF nor DKIM passed.",
	7.28: "The server has got too much mail from here in a short time.",
};
// What each class of refusals means, and what helps.
const CLASSES = {
	invalid_recipient: [
		"There is no such mailbox.",
		"Ask the recipient for the right address, and remove this one from your lists.",
	],
	mailbox_full: ["The mailbox is full.", "Send again in some days, or reach the recipient in another way."],
	policy: [
		"A rule of the receiver refuses the message.",
		"Its reply says which. Ask the receiver's postmaster if it does not.",
	],
	reputation: [
		"The receiver refuses this sender for now.",
		"Look the sending address up at the blocklist that the reply names, then send again.",
	],
	content: [
		"The receiver refuses what the message contains, or its size.",
		"Change links, files or wording, and send the new message.",
	],
	authentication: [
		"The receiver could not prove who sent the message.",
		"Check the DNS records of the sending domain, then send again.",
	],
	temporary: ["No server took the message in time.", "Send again once the server of the recipient answers."],
	other: ["The server gave no reason that has a class.", "Its reply is below."],
};
const UNSUBSCRIBED = /unsubscribed from/;

export const isProblem = (recipient) =>
	["bounced", "failed", "suppressed", "cancelled"].includes(recipient.outcome) || Boolean(recipient.late_bounce);

/** [what it means, what to do] of a recipient that is a problem. */
export function meaning(recipient) {
	const reply = recipient.late_bounce?.response ?? recipient.last_smtp_response ?? "";
	const stands = recipient.outcome;
	if (stands === "cancelled") return ["It was cancelled before a server took it.", "Send again if it is still wanted."];
	if (stands === "suppressed") {
		return UNSUBSCRIBED.test(reply)
			? ["The recipient has unsubscribed from such messages.", "Send no more of them to this address."]
			: [
					"The address is on your suppression list, so no server was asked.",
					"If you are sure that the address is right, remove it from the list and send again.",
				];
	}
	const [means, helps] = CLASSES[recipient.late_bounce?.class ?? recipient.bounce_class] ?? CLASSES.other;
	const code = /\b[45]\.(\d{1,2}\.\d{1,2})\b/.exec(reply.slice(0, 200))?.[1];
	return [CODES[code] ?? means, helps];
}

/** Sends to these recipients again, after a question, and opens the new message. */
export async function sendAgain(message, recipients, go) {
	const many = count(recipients.length, "recipient", "recipients");
	const text = `A new message with the same content goes to ${many}. It costs a credit for each.`;
	if (!(await confirmed("Send this message again?", text, "Send again", "Cancel", "primary"))) return;
	const body = { recipients: recipients.map((each) => each.id) };
	const made = await post(`${path("/v1/emails", message.id)}/resend`, body, {
		"Idempotency-Key": crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`,
	});
	toast(`Sent again to ${many}`);
	await go(path("/dashboard/messages", made.id));
}

/** What a recipient's problem means and what can be done about it; nothing without `go`. */
export function advice(message, recipient, go) {
	const [means, helps] = meaning(recipient);
	const release =
		(recipient.outcome === "suppressed" && !UNSUBSCRIBED.test(recipient.last_smtp_response)) ||
		recipient.bounce_class === "invalid_recipient";
	const sender = /@([^@>]+)>?$/.exec(message.from)?.[1] ?? "";
	return h(
		"div",
		{ class: "advice", "data-key": "advice" },
		h("p", null, h("b", null, means), " ", helps),
		go &&
			h(
				"div",
				{ class: "row" },
				release &&
					button(
						"Remove from suppressions",
						async () => {
							await del(path("/v1/suppressions", recipient.email)).catch((error) => {
								if (error.status !== 404) throw error;
							});
							toast(`${recipient.email} is not on the suppression list any more`);
						},
						"",
						{ needs: "removeSuppression" },
					),
				recipient.bounce_class === "authentication" &&
					h("a", { class: "button", href: path("/dashboard/domains", sender.toLowerCase()) }, "DNS records"),
				message.body_kept &&
					button("Send again", () => sendAgain(message, [recipient], go), "", { needs: "resendEmail" }),
				h(
					"a",
					{ class: "button", href: query("/dashboard/messages", { recipient: recipient.email }) },
					"All messages to this address",
				),
			),
	);
}
