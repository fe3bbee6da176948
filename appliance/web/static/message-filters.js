// The filters of the message list: typed, chosen or saved; kept in the URL and shown as chips.
import { del, get, post } from "./api.js";
import { h, query, toast } from "./dom.js";
import { dialog, form } from "./form.js";
import { shownName } from "./idn.js";
import { button } from "./pieces.js";
import { providerName } from "./provider-names.js";
import { streamOptions } from "./streams.js";
import { hour, number } from "./time.js";
import { chip, toolbar } from "./toolbar.js";

// Names in the URL and in words. A new filter of the API needs a line here, and one in `fields`.
const TITLES = {
	outcome: "Status",
	waiting: "Status",
	status: "Status",
	recipient: "To",
	address: "Address contains",
	from: "From",
	tag: "Tag",
	stream: "Stream",
	metadata: "Metadata",
	provider: "Provider",
	key: "Key",
	source: "Source",
	since: "Since",
	until: "Until",
};
const TYPED = { to: "recipient", status: "outcome", contains: "address" }; // typed names that differ from the URL's
const STATUSES =
	"waiting scheduled queued deferred delivered partial bounced failed suppressed cancelled late_bounced complained";
/** A status as a filter. Of these words, all but two are outcomes of a recipient. */
const byStatus = (word) => ({ partial: { status: word }, waiting: { waiting: "true" } })[word] ?? { outcome: word };
const SPANS = { today: "today", "7d": "the last 7 days", "30d": "the last 30 days" };
const PRESETS = [
	["Bounced today", { outcome: "bounced", since: "today" }],
	["Waiting now", { waiting: "true" }],
	["Scheduled", { outcome: "scheduled" }],
	["Complaints", { outcome: "complained" }],
];
const PARTS = 20; // requests of one count at most, of 50 ms each

export const words = (value) => value.replace("_", " ");

/** The filters in a query string. */
export const read = (parameters) =>
	Object.fromEntries(
		["q", ...Object.keys(TITLES)].filter((name) => parameters.get(name)).map((name) => [name, parameters.get(name)]),
	);

/** Filters typed as `tag:welcome` or `to:"ada@example.net"`; other words are searched. */
export function typed(text) {
	const found = {};
	const rest = text.replace(/(?<!\S)(\w+):(?:"([^"]*)"|(\S+))/g, (whole, name, quoted, bare) => {
		const known = TYPED[name.toLowerCase()] ?? name.toLowerCase();
		const value = quoted ?? bare;
		if (!TITLES[known] || !value) return whole;
		Object.assign(found, known === "outcome" ? byStatus(value) : { [known]: value });
		return "";
	});
	return { ...found, q: rest.trim().replace(/\s+/g, " ") };
}

/** Midnight of a day in the viewer's time zone: a date, `today`, or days before today such as `7d`. */
function midnight(day, later) {
	const before = day === "today" ? 0 : /^(\d{1,3})d$/.exec(day)?.[1];
	const moment = new Date(before === undefined ? `${day}T00:00` : new Date().setHours(0, 0, 0, 0));
	moment.setDate(moment.getDate() - (before ?? 0) + later);
	return Number.isNaN(moment.getTime()) ? day : moment.toISOString();
}

/** The filters for the API. Days are in the viewer's time zone, the last one included. */
export const asked = ({ since, until, ...filters }) => ({
	...filters,
	since: since && midnight(since, 0),
	until: until && midnight(until, 1),
});

/** A filter in words: `Status: bounced`, `Since: 15 Nov, 05:30`. */
export function worded(name, value) {
	if (name === "waiting") return "Status: waiting";
	const said = { outcome: words, status: words, provider: providerName, from: shownName, recipient: shownName }[name];
	const text = /^\d{4}-\d\d-\d\dT/.test(value) ? hour(value) : (SPANS[value] ?? value);
	return `${TITLES[name]}: ${said?.(value) ?? text}`;
}

/** All filters in words, for a list without results. */
export const described = ({ q, ...others }) =>
	[q && `“${q}”`, ...Object.entries(others).map(([name, value]) => worded(name, value))].filter(Boolean).join("; ");

const same = (one, other) =>
	JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort());

/** Count matching messages, part by part, and show the number; with a `+` if there are more. */
async function count(filters, shown, signal, parts = PARTS) {
	let total = 0;
	let before;
	for (let part = 0; part < parts; part += 1) {
		const answer = await get(query("/v1/emails/count", { ...asked(filters), before }), signal);
		total += answer.count;
		before = answer.next;
		if (!before) break;
	}
	shown(`${number(total)}${before ? "+" : ""}`, total);
	return !before;
}

/** API keys and SMTP credentials, for a choice. */
async function keys(signal) {
	const [api, smtp] = await Promise.all([
		get("/v1/api-keys?limit=100", signal),
		get("/v1/smtp-credentials?limit=100", signal),
	]);
	return [
		...api.api_keys.map((each) => [each.id, each.name || `…${each.hint}`]),
		...smtp.smtp_credentials.map((each) => [each.username, each.name || each.username]),
	];
}

/** The dialog with all filters. */
async function choose(page, filters, home) {
	const choices = (values) => [["", "Any"], ...values.map((each) => [each, words(each)])];
	const [known, streams] = await Promise.all([
		keys(page.signal).catch(() => []),
		streamOptions("Any", page.signal, filters.stream).catch(() => [["", "Any"]]),
	]);
	const text = (name, placeholder, label = TITLES[name]) => ({ name, label, placeholder, value: filters[name] });
	const select = (name, options, label = TITLES[name]) => ({
		name,
		label,
		type: "select",
		value: filters[name] ?? "",
		options,
	});
	const date = (name, label) => ({
		name,
		label,
		type: !filters[name] || /^[\d-]+$/.test(filters[name]) ? "date" : "text",
		value: filters[name],
	});
	const fields = [
		{
			...select("outcome", choices(STATUSES.split(" "))),
			value: filters.outcome ?? filters.status ?? (filters.waiting ? "waiting" : ""),
		},
		text("recipient", "Address or domain"),
		text("address", "Part of an address"),
		text("from", "Address or domain"),
		text("tag", "welcome"),
		select("stream", streams),
		text("metadata", "order:10045"),
		text("provider", "google"),
		select("key", [["", "Any"], ...known]),
		select("source", choices(["api", "smtp", "test"])),
		date("since", "From day"),
		date("until", "To day"),
	];
	dialog("Filter messages", (close) =>
		form({
			fields,
			submit: "Show messages",
			extra: [button("Cancel", close)],
			send: ({ outcome, ...chosen }) => {
				close();
				return page.go(query(home, { q: filters.q, ...chosen, ...byStatus(outcome) }), { focus: false });
			},
		}),
	);
}

/** Ask for a name, and save the filters under it. */
function saveView(page, filters) {
	dialog("Save this view", (close) =>
		form({
			fields: [{ name: "name", label: "Name", required: true, maxlength: 60, autofocus: true }],
			submit: "Save view",
			extra: [button("Cancel", close)],
			async send({ name }) {
				await post("/v1/views", { name: name.trim(), filters });
				close();
				toast("View saved");
				await page.reload();
			},
		}),
	);
}

/** Presets with their counts, which are requested after `listed`, and the user's views. */
function views(page, filters, home, own, listed) {
	const place = h("nav", { class: "row views", "aria-label": "Views" });
	for (const [name, preset] of PRESETS) {
		const link = chip(name, { href: query(home, preset), current: same(preset, filters) });
		place.append(link);
		if (own)
			listed
				.then(() => count(preset, (text, total) => total && link.append(" ", h("b", null, text)), page.signal, 4))
				.catch(() => {});
	}
	const remove = (view) =>
		button(
			"Delete view",
			async () => {
				await del(`/v1/views/${view.id}`);
				toast(`View “${view.name}” deleted`, async () => {
					await post("/v1/views", { name: view.name, filters: view.filters });
					await page.reload();
				});
				await page.reload();
			},
			"tiny plain",
		);
	const load = async () => {
		const { views: saved } = await get("/v1/views", page.signal);
		for (const view of saved) {
			const current = same(view.filters, filters);
			place.append(chip(view.name, { href: query(home, view.filters), current }), ...(current ? [remove(view)] : []));
		}
		const known = [...PRESETS.map(([, preset]) => preset), ...saved.map((view) => view.filters)];
		if (Object.keys(filters).length && !known.some((each) => same(each, filters)))
			place.append(button("Save view", () => saveView(page, filters), "tiny"));
	};
	if (own) load().catch(() => {});
	return place;
}

/**
 * The bar above the list, which `listed` promises: counts take longer than a list, and would delay it. `recount` shows
 * the number of matching messages, if that takes one request.
 */
export function filterBar(page, filters, home, own, actions, listed) {
	const field = h("input", {
		type: "search",
		name: "q",
		value: filters.q ?? "",
		maxlength: 200,
		"aria-label": "Search messages",
		placeholder: "Search, or tag:welcome to:ada@example.net",
		autocomplete: "off",
		spellcheck: "false",
	});
	const search = h(
		"form",
		{
			role: "search",
			"aria-label": "Messages",
			onsubmit: (event) => {
				event.preventDefault();
				page.go(query(home, { ...filters, ...typed(field.value) }), { focus: false });
			},
		},
		field,
	);
	const chips = Object.entries(filters)
		.filter(([name]) => name !== "q")
		.map(([name, value]) => chip(worded(name, value), { remove: query(home, { ...filters, [name]: "" }) }));
	const bar = toolbar({
		search,
		chips: [
			chips,
			button("Filter", () => choose(page, filters, home)),
			Object.keys(filters).length > 0 && h("a", { class: "button plain", href: home }, "Clear"),
		],
		actions,
	});
	const shown = bar.querySelector(".count");
	let counts = own;
	const recount = async () => {
		if (!counts) return;
		const tell = (text) => (shown.textContent = `${text} ${text === "1" ? "message" : "messages"}`);
		counts = await count(filters, tell, page.signal).catch(() => true);
	};
	return { parts: [bar, views(page, filters, home, own, listed)], recount };
}
