// What a server's reply means and what to do, for undelivered recipients.
import { del, get, post } from "./api.js";
import { h, path, query, toast } from "./dom.js";
import { confirmed } from "./form.js";
import { button } from "./pieces.js";
import { count } from "./time.js";

// By the second and third number of an enhanced status code (RFC 3463).
const CODES = {
	1.1: "The mailbox does not exist.",
	1.2: "The recipient's domain does not exist or accepts no mail.",
	1.3: "The server rejects the form of the address.",
	1.6: "The mailbox has moved without a forwarding address.",
	1.8: "The server rejects the sender's domain.",
	"1.10": "The domain declares in DNS that it accepts no mail.",
	2.1: "The mailbox is disabled or accepts no mail.",
	2.2: "The mailbox is full.",
	2.3: "The message is too large for this mailbox.",
	3.4: "The message is too large for the server.",
	4.1: "The server did not respond.",
	4.4: "The server could not be reached.",
	4.7: "Delivery was retried until it expired.",
	7.1: "The server's policy rejects the message or the sender.",
	"7.20": "No DKIM signature passed.",
	7.23: "SPF failed: this server's address is not in the sender's SPF record.",
	7.25: "The sending address has no matching reverse DNS name.",
	7.26: "Neither SPF nor DKIM passed.",
	7.28: "The server received too much mail from this sender in a short time.",
};
// What each class of refusal means, and what to do.
const CLASSES = {
	invalid_recipient: [
		"The mailbox does not exist.",
		"Ask the recipient for the correct address, and remove this one from your lists.",
	],
	mailbox_full: ["The mailbox is full.", "Send again in a few days, or contact the recipient another way."],
	policy: ["The receiver's policy rejects the message.", "The reply says why. If not, ask the receiver's postmaster."],
	reputation: [
		"The receiver rejects this sender for now.",
		"Check the sending address at the blocklist named in the reply, then send again.",
	],
	content: [
		"The receiver rejects the content or size of the message.",
		"Change links, attachments or wording, and send a new message.",
	],
	authentication: [
		"The receiver could not authenticate the sender.",
		"Check the DNS records of the sending domain, then send again.",
	],
	temporary: ["No server accepted the message in time.", "Send again once the recipient's server responds."],
	other: ["The reply fits no known class.", "The reply itself says why."],
};
const REASON = 200; // characters of a suppression's reason
const PROBLEMS = ["bounced", "failed", "suppressed", "cancelled", "late_bounced", "complained"];

export const isProblem = (recipient) => PROBLEMS.includes(recipient.outcome);

/** What a class of refusal means, and what to do. */
export const classMeaning = (name) => CLASSES[name] ?? CLASSES.other;

/** [meaning, action] for an undelivered recipient. */
export function meaning(recipient) {
	const reply = recipient.late_bounce?.response ?? recipient.last_smtp_response ?? "";
	const stands = recipient.outcome;
	if (stands === "cancelled")
		return ["The message was cancelled before delivery.", "Send again if it is still needed."];
	if (stands === "complained")
		return [
			"The recipient reported this message as spam.",
			recipient.suppression
				? "The address is suppressed. Send to it again only if the recipient asks for it."
				: "The address is not suppressed. Send to it again only if the recipient asks for it.",
		];
	if (stands === "suppressed") {
		if (recipient.suppression === "unsubscribe")
			return ["The recipient unsubscribed from these messages.", "Do not send them to this address."];
		return recipient.suppression
			? [
					"The address is suppressed, so no delivery was attempted.",
					"If the address is correct, remove it from the suppressions and send again.",
				]
			: ["The address was suppressed, so no delivery was attempted.", "It is not suppressed any more: send again."];
	}
	const [means, helps] = classMeaning(recipient.late_bounce?.class ?? recipient.bounce_class);
	const code = /\b[45]\.(\d{1,2}\.\d{1,2})\b/.exec(reply.slice(0, 200))?.[1];
	return [CODES[code] ?? means, helps];
}

/** Confirm, send again to these recipients, and open the new message. */
export async function sendAgain(message, recipients, go) {
	const many = count(recipients.length, "recipient", "recipients");
	const text = `This sends a new message with the same content to ${many}. Each recipient costs one credit.`;
	if (!(await confirmed("Send this message again?", text, "Send again", "Cancel", "primary"))) return;
	const body = { recipients: recipients.map((each) => each.id) };
	const made = await post(`${path("/v1/emails", message.id)}/resend`, body, {
		"Idempotency-Key": crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`,
	});
	toast(`Sent again to ${many}`);
	await go(path("/dashboard/messages", made.id));
}

/** Undo a release: the entry gets its origin and reason back, as far as the API accepts the reason. */
export const restore = ({ address, origin, reason = "" }) => {
	const line = [...reason.replace(/[\p{Cc}\u2028\u2029]+/gu, " ")].slice(0, REASON).join("");
	return post("/v1/suppressions", { address, origin, reason: line || undefined });
};

/** The entry of a suppressed address. */
async function entryOf(address, origin) {
	const { suppressions } = await get(query("/v1/suppressions", { q: address }));
	const found = suppressions.find((each) => each.address === address && !each.tag && !each.template && !each.stream);
	return found ?? { address, origin };
}

/** A recipient's problem and the possible actions; none without `go`. */
export function advice(message, recipient, go) {
	const [means, helps] = meaning(recipient);
	const address = recipient.email.toLowerCase();
	const { suppression } = recipient;
	const release = suppression && suppression !== "unsubscribe";
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
						async (made) => {
							const entry = await entryOf(address, suppression);
							await del(path("/v1/suppressions", address)).catch((error) => {
								if (error.status !== 404) throw error;
							});
							recipient.suppression = null;
							made.hidden = true;
							toast(`${recipient.email} is no longer suppressed`, async () => {
								await restore(entry);
								recipient.suppression = suppression;
								made.hidden = false;
							});
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
