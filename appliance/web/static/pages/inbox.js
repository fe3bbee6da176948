// The inbox of `appliance dev`: all messages, newest first, and the content of one.
import { del, get } from "../api.js";
import { fragment, h, path, query } from "../dom.js";
import { stateBadge } from "../lists.js";
import { content, read } from "../message-body.js";
import { framed, links, open, source } from "../message-views.js";
import { badge, button, empty, errorText, facts, head } from "../pieces.js";
import { ago, when } from "../time.js";
import { update } from "../update.js";

const LISTED = 100;
const LEVELS = { error: "failed", warning: "deferred", info: "queued" }; // shown with the colour of a status

const checks = (found) =>
	found.length === 0
		? h("p", { class: "quiet" }, "No findings.")
		: h(
				"ul",
				{ class: "findings" },
				found.map((each) =>
					h(
						"li",
						null,
						h("p", null, badge(LEVELS[each.level], each.level), " ", h("b", null, each.title)),
						h("p", { class: "break" }, each.detail),
						each.source && h("p", { class: "quiet small break" }, "Source: ", each.source, " ", open(each.source)),
					),
				),
			);

async function shown(id, signal) {
	const address = path("/v1/emails", id);
	const [message, found, checked] = await Promise.all([
		get(address, signal),
		read(address, signal),
		get(`${address}/checks`, signal).catch(() => ({ findings: [], links: [] })),
	]);
	const more = [
		["Source", () => source(address, signal)],
		[`Links (${checked.links.length})`, () => links(checked.links)],
		[`Checks (${checked.findings.length})`, () => checks(checked.findings)],
	];
	return h(
		"div",
		null,
		h("h2", null, h("bdi", null, message.subject || "(no subject)"), " ", stateBadge(message)),
		facts([
			["From", h("bdi", { class: "break" }, message.from)],
			["To", h("bdi", { class: "break" }, message.recipients.map((each) => each.email).join(", "))],
			["Received", when(message.created_at)],
			["Delivery", h("a", { href: path("/dashboard/messages", message.id) }, "Attempts, webhooks and details")],
		]),
		await content(message, found, address, signal, { framed, more }),
	);
}

const entry = (message, isOpen, choose) =>
	h(
		"li",
		{ "data-id": message.id },
		h(
			"button",
			{ type: "button", class: "plain", "aria-current": isOpen && "true", onclick: () => choose(message.id) },
			h("b", null, h("bdi", null, message.subject || "(no subject)")),
			h("span", { class: "quiet" }, h("bdi", null, message.recipients.map((each) => each.email).join(", "))),
			h("span", { class: "quiet small" }, ago(message.created_at), " ", stateBadge(message)),
		),
	);

export default async function inbox(page) {
	let chosen = page.query.get("id");
	let opened = null;
	const load = () => get(query("/v1/emails", { limit: LISTED }), page.signal);
	const list = h("ul", { class: "mails", "aria-label": "Messages" });
	const message = h("div", { class: "card", "aria-live": "off" });
	const none = h(
		"div",
		null,
		empty(
			"No messages yet",
			"Send from your application to the SMTP port that the console shows (1025 by default), or with any API key. " +
				"Messages appear here at once.",
		),
	);
	const box = h("div", { class: "inbox" }, list, message);

	async function show() {
		if (opened === chosen) return;
		opened = chosen;
		const loading = chosen;
		const node = chosen ? await shown(chosen, page.signal).catch(errorText) : "";
		if (loading === chosen) message.replaceChildren(node);
	}
	async function choose(id) {
		chosen = id;
		history.replaceState(history.state, "", query(location.pathname, { id }));
		await refresh();
	}
	async function refresh() {
		const { emails } = await load();
		box.hidden = emails.length === 0 && !chosen;
		none.hidden = !box.hidden;
		chosen ??= emails[0]?.id ?? null;
		update(list, ...emails.map((each) => entry(each, each.id === chosen, choose)));
		for (const each of list.children) each.firstChild.ariaCurrent = each.dataset.id === chosen ? "true" : null;
		await show();
	}
	const clear = button("Delete all", async () => {
		await del("/v1/emails");
		chosen = null;
		await choose(null);
	});
	await refresh();
	page.every(1, refresh);
	return fragment(head("Inbox", { actions: [clear] }), none, box);
}
