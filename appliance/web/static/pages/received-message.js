// One received message: its content, the checks of its sender, its webhook deliveries, and forwarding.
import { get, post } from "../api.js";
import { bytes } from "../bytes.js";
import { fragment, h, path } from "../dom.js";
import { formDialog } from "../form.js";
import { content } from "../message-body.js";
import { framed, later, links, source } from "../message-views.js";
import { button, copyButton, facts, head, notice, table } from "../pieces.js";
import { postsOf } from "../posts.js";
import { tabs } from "../tabs.js";
import { when } from "../time.js";
import { update } from "../update.js";
import { bare, checkBadge, checkBadges } from "./received.js";

const HOME = "/dashboard/received";
const NO_POSTS =
	"No webhook delivery of this message in the last 7 days. " +
	"A webhook gets received mail if it has the event email.received.";

const mailboxes = (name, found) => found.length > 0 && [name, h("bdi", { class: "break" }, found.join(", "))];

function summary(message) {
	const { envelope, in_reply_to_email: answered } = message;
	const sender = bare(message.from).toLowerCase();
	return facts([
		["From", h("bdi", { class: "break" }, message.from || "(none)")],
		envelope.from.toLowerCase() !== sender && [
			"Envelope sender",
			h("bdi", { class: "break" }, envelope.from || "none, as of bounces and automatic replies"),
		],
		["Received for", h("bdi", { class: "break" }, envelope.to.join(", "))],
		mailboxes("To", message.to),
		mailboxes("Cc", message.cc),
		mailboxes("Reply-To", message.reply_to),
		answered && [
			"Answers",
			h("a", { class: "mono break", href: path("/dashboard/messages", answered.id) }, answered.id),
			Object.entries(answered.metadata).map(([key, value]) => [" ", h("bdi", { class: "tag" }, `${key}: ${value}`)]),
		],
		message.forwarded_as.length > 0 && [
			"Forwarded as",
			message.forwarded_as.map((id) => [
				h("a", { class: "mono break", href: path("/dashboard/messages", id) }, id),
				" ",
			]),
		],
		["Sender checks", checkBadges(message)],
		["Received", when(message.received_at)],
		["Size", bytes(message.size)],
		["Message id", h("code", { class: "break" }, message.id), copyButton(message.id, "message id")],
	]);
}

/** What the person should know before trusting or answering the message. */
const warnings = (message) => [
	message.dmarc === "fail" &&
		notice("bounced", "This message fails DMARC: someone else may have written it. Do not trust the From address."),
	message.auto_submitted &&
		notice("deferred", "A program sent this message, or it loops. An application should not answer it."),
];

function checks({ spf, dkim, dmarc, client }) {
	const policy = dmarc.policy && `published policy: ${dmarc.policy}`;
	const rows = [
		[checkBadge("SPF", spf.result), spf.domain, spf.reason],
		...dkim.map((each) => [
			checkBadge("DKIM", each.result),
			`${each.domain}, selector ${each.selector}`,
			[each.aligned ? "aligned with From" : "not aligned with From", each.reason].filter(Boolean).join("; "),
		]),
		[checkBadge("DMARC", dmarc.result), dmarc.domain, [policy, dmarc.reason].filter(Boolean).join("; ")],
	];
	return [
		table(
			"Sender checks",
			[{ title: "Result" }, { title: "Domain", class: "break" }, { title: "Detail", class: "break" }],
			rows.map(([result, domain, detail]) => [
				result,
				h("bdi", { class: "mono" }, domain || "–"),
				h("bdi", null, detail),
			]),
		),
		h(
			"div",
			{ class: "card" },
			facts([
				["Sending server", h("bdi", { class: "mono" }, client.address)],
				["Its name (EHLO, not verified)", h("bdi", { class: "mono break" }, client.helo)],
				["Connection", client.tls ? "encrypted (TLS)" : "not encrypted"],
			]),
		),
	];
}

/** An address that may send: the one that received the message, at its domain or the closest verified one. */
async function forwarder([address], signal) {
	const { domains } = await get("/v1/domains?limit=100", signal);
	const usable = domains.filter((each) => each.status !== "pending").map((each) => each.name);
	const [local, domain] = address.split("@");
	const above = usable
		.filter((name) => `.${domain}`.endsWith(`.${name}`))
		.sort((one, other) => other.length - one.length);
	return `${local.split("+")[0]}@${above[0] ?? usable[0] ?? domain}`;
}

async function forward(page, message, address) {
	const sender = await forwarder(message.envelope.to, page.signal);
	const key = `${message.id}-${Date.now()}-${Math.random()}`;
	formDialog("Forward message", {
		about:
			"Sends a new message with the same texts and files. Answers to it go to the original sender. " +
			"Each recipient costs one credit.",
		fields: [
			{ name: "to", label: "To", type: "email", required: true, placeholder: "ada@example.net", autofocus: true },
			{
				name: "from",
				label: "From",
				required: true,
				value: sender,
				hint: "An address at one of your verified domains.",
			},
		],
		submit: "Forward message",
		send: (values) => post(`${address}/forward`, values, { "Idempotency-Key": key }),
		done: (made) => page.go(path("/dashboard/messages", made.id)),
	});
}

/** The list that the user came from, with its search. */
function list() {
	const from = history.state?.from ?? "";
	return from.startsWith(`${HOME}?`) ? from : HOME;
}

export default async function receivedMessage(page) {
	const address = path("/v1/inbound", page.params[0]);
	const early = postsOf(page.params[0], page.signal, () => tell(), NO_POSTS);
	const message = await get(address, page.signal);
	let linked;
	const found = new Promise((resolve) => (linked = resolve));
	const linkTo = async (index) => (await get(address, page.signal)).attachments[index].url; // a new one, for an hour
	const more = [
		["Source", () => source(address, page.signal)],
		...(message.html === null ? [] : [["Links", () => later(async () => links(await found))]]),
	];
	const fileAt = (index) => `${address}/attachments/${index + 1}`;
	const body = await content(message, message, address, page.signal, { framed, more, linked, fileAt, linkTo });
	const posts = h("div");
	const tell = async () => update(posts, await postsOf(message.id, page.signal, tell, NO_POSTS));
	update(posts, await early);
	page.every(2, tell);
	return fragment(
		head(message.subject || "(no subject)", {
			crumb: { href: list(), title: "Received" },
			actions: [button("Forward", () => forward(page, message, address), "primary", { needs: "forwardReceivedEmail" })],
		}),
		warnings(message),
		h("div", { class: "card summary" }, summary(message)),
		tabs("Received message", null, [
			["Content", body],
			["Checks", () => fragment(checks(message.authentication))],
			["Webhook", posts],
		]),
	);
}
