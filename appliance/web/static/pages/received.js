// Received messages: search, and the list with the checks of each sender, newest first.
import { file, get } from "../api.js";
import { fragment, h, may, path, query } from "../dom.js";
import { loader, paged, wrongFilter } from "../lists.js";
import { badge, button, empty, head, row } from "../pieces.js";
import { when } from "../time.js";
import { toolbar } from "../toolbar.js";

const HOME = "/dashboard/received";
const PAGE = 50;
const COLUMNS = [
	{ title: "From", class: "cut to", lead: true },
	{ title: "Subject", class: "cut second" },
	{ title: "To", class: "cut table-only" },
	{ title: "Sender checks", class: "side" },
	{ title: "Received", class: "side bare" },
];
const RENEW_EVERY = 5; // seconds

// The colour of each result. Without one, nothing says whether the sender is who it claims to be.
const RESULTS = { pass: "ok", fail: "bounced", permerror: "bounced", softfail: "deferred", temperror: "deferred" };
const CHECKS = { spf: "SPF", dkim: "DKIM", dmarc: "DMARC" };

export const checkBadge = (name, result) => badge(RESULTS[result] ?? "unknown", `${name} ${result}`);

/** The results of SPF, DKIM and DMARC. */
export const checkBadges = (message) =>
	h(
		"ul",
		{ class: "row states", "aria-label": "Sender checks" },
		Object.entries(CHECKS).map(([kind, name]) => h("li", null, checkBadge(name, message[kind]))),
	);

/** The address alone. */
export const bare = (mailbox) => /<([^<>]+)>$/.exec(mailbox)?.[1] ?? mailbox;

const files = ({ attachment_count: count }) => (count === 1 ? "1 file" : `${count} files`);

const listed = (message) => ({
	id: message.id,
	href: path(HOME, message.id),
	title: [
		bare(message.from),
		message.subject,
		message.attachment_count > 0 && files(message),
		`To: ${message.envelope.to.join(", ")}`,
	]
		.filter(Boolean)
		.join("\n"),
	cells: [
		h("bdi", { class: "mono" }, bare(message.from) || message.envelope.from || "(no sender)"),
		fragment(
			// Before the subject, which is cut where it is too long.
			message.auto_submitted && h("span", { class: "tag" }, "automatic"),
			message.attachment_count > 0 && h("span", { class: "tag" }, files(message)),
			h("bdi", { class: !message.subject && "quiet" }, message.subject || "(no subject)"),
		),
		h("bdi", { class: "mono quiet" }, message.envelope.to.join(", ")),
		checkBadges(message),
		h("span", { class: "quiet" }, when(message.received_at)),
	],
});

function search(page, q) {
	const field = h("input", {
		type: "search",
		name: "q",
		value: q,
		maxlength: 200,
		"aria-label": "Search received messages",
		placeholder: "Sender, recipient or subject",
		autocomplete: "off",
		spellcheck: "false",
	});
	const onsubmit = (event) => {
		event.preventDefault();
		page.go(query(HOME, { q: field.value.trim() }), { focus: false });
	};
	return h("form", { role: "search", "aria-label": "Received messages", onsubmit }, field);
}

async function nothing(q, signal) {
	if (q)
		return empty(
			`No results for “${q}”`,
			"All words must be in the sender, the recipients or the subject.",
			h("a", { class: "button", href: HOME }, "Show all received messages"),
		);
	const { addresses } = await get("/v1/inbound/addresses?limit=1", signal);
	if (addresses.length)
		return empty(
			"No received messages",
			"Messages to your receiving addresses appear here, and are stored as long as the texts of sent messages.",
		);
	return empty(
		"No address receives mail",
		may("addReceivingAddress")
			? "Add an address or a domain, and publish its MX record. Replies to your messages then arrive here."
			: "Only owners and developers can add receiving addresses.",
		h("a", { class: "button", href: "/dashboard/receiving" }, "Receiving addresses"),
	);
}

async function exported(q) {
	const [{ save }, csv] = await Promise.all([
		import("../message-body.js"),
		file(query("/v1/inbound", { q, format: "csv" })),
	]);
	save(csv, "received.csv");
}

export default async function received(page) {
	const q = page.query.get("q") ?? "";
	const load = loader(page.signal, "/v1/inbound", "emails", "before", { q, limit: PAGE });
	const place = h("div");
	const shown = () =>
		fragment(
			head("Received", {
				about: "Mail to your receiving addresses.",
				actions: [
					button("Export CSV", () => exported(q)),
					h("a", { class: "button", href: "/dashboard/receiving" }, "Receiving addresses"),
				],
			}),
			toolbar({ search: search(page, q) }),
			place,
		);
	let first;
	try {
		first = await load();
	} catch (error) {
		place.append(wrongFilter(error));
		return shown();
	}
	const show = async (found) =>
		place.replaceChildren(
			found.items.length || found.next
				? paged("Received messages, newest first", COLUMNS, found, listed, load)
				: await nothing(q, page.signal),
		);
	await show(first);
	page.every(RENEW_EVERY, async () => {
		const { emails, next } = await get(query("/v1/inbound", { q, limit: PAGE }), page.signal);
		const body = place.querySelector("tbody");
		const newest = body?.rows[0]?.dataset.id ?? "";
		const fresh = emails.filter((each) => each.id > newest);
		if (!fresh.length) return;
		if (!body || fresh.length === PAGE) await show({ items: emails, next });
		else body.prepend(...fresh.map((each) => row(COLUMNS, listed(each))));
	});
	return shown();
}
