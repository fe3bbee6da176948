// How mail fares at each provider over time, and what the providers' servers said.
import { get } from "../api.js";
import { chart } from "../chart.js";
import { fragment, h, path, query } from "../dom.js";
import { shownName } from "../idn.js";
import { wrongFilter } from "../lists.js";
import { button, empty, head, rate, section, table } from "../pieces.js";
import { classMeaning } from "../problems.js";
import { providerName } from "../provider-names.js";
import { ago, number, percent, span, utcDay } from "../time.js";
import { chip, segments, toolbar } from "../toolbar.js";

const HERE = "/dashboard/deliverability";
const RANGES = [7, 30, 90];
const OTHER = "other"; // servers without a known provider, in the address
const RESULTS = [
	["delivered", "Delivered", "delivered"],
	["bounced", "Bounced", "bounced"],
	["failed", "Failed", "failed"],
];
const SHARES = [
	["deferred_share", "Deferred", "deferred"],
	["bounce_rate", "Bounced", "bounced"],
	["complaint_rate", "Complained", "complained"],
];
const TIMES = [
	["median", "Half of the deliveries", "queued"],
	["p95", "95 %", "deferred"],
];
const COLUMNS = ["Sent", "Delivered", "Deferred", "Bounced", "Complained"];
const FIELDS = `sent delivered deferred bounced failed suppressed cancelled late_bounced complained bounce_rate
	complaint_rate median_seconds p95_seconds`.split(/\s+/);

const milliseconds = (seconds) => (seconds === null ? null : seconds * 1000);
/** The server knows in which step a delivery time lies: the text names its end. */
const atMost = (seconds) => (seconds === null ? "–" : `≤ ${span(seconds * 1000)}`);

function line(each, chosen) {
	return {
		href: query(HERE, { ...chosen, provider: each.provider ?? OTHER }),
		id: each.provider ?? OTHER,
		cells: [
			providerName(each.provider),
			...COLUMNS.map((name) => number(each[name.toLowerCase()])),
			rate(each.bounce_rate, each.bounce_mark),
			rate(each.complaint_rate, each.complaint_mark),
			atMost(each.median_seconds),
		],
	};
}

const numeric = (title, kind = "number") => ({ title, class: kind });
const providers = (entries, chosen) =>
	table(
		"Delivery by provider",
		[
			{ title: "Provider" },
			...COLUMNS.map((title, at) => numeric(title, at === 1 || at === 3 ? "number" : "number wide")),
			numeric("Bounce rate"),
			numeric("Complaint rate", "number wide"),
			numeric("Time to delivery"),
		],
		entries.map((each) => line(each, chosen)),
		"cards",
	);

// Of mail that failed and of mail that is still queued.
const LATER = [
	"The server did not accept the message.",
	"Queued mail is retried. Send failed mail again once the server responds.",
];

/** What the servers said, by cause, with what to do. */
function replies(entries) {
	const row = (each) => {
		const [means, helps] = each.bounce_class === "temporary" ? LATER : classMeaning(each.bounce_class);
		return {
			href: path("/dashboard/messages", each.message_id),
			cells: [
				h("bdi", { class: "mono break" }, each.response),
				[h("b", null, means), " ", h("span", { class: "quiet" }, helps)],
				providerName(each.provider),
				number(each.recipients),
				ago(each.last_at),
			],
		};
	};
	const columns = [
		{ title: "Newest reply", lead: true, class: "half" },
		{ title: "Cause, and what to do" },
		{ title: "Provider" },
		numeric("Recipients"),
		{ title: "Last", class: "side" },
	];
	return table("Replies by cause", columns, entries.map(row), "cards");
}

function charts(found, chosen, page) {
	const { provider, domain, template, stream, source } = chosen;
	const days = found.days.map((day) => {
		const tried = day.delivered + day.bounced + day.failed;
		return {
			...day,
			deferred_share: tried ? day.deferred / tried : null,
			median: milliseconds(day.median_seconds),
			p95: milliseconds(day.p95_seconds),
		};
	});
	// The list of messages cannot be filtered by source address.
	const link = (outcome, { start }) =>
		query("/dashboard/messages", {
			outcome,
			provider: provider === OTHER ? "" : provider,
			from: domain,
			q: template,
			stream,
			since: start,
			until: new Date(Date.parse(start) + 8.64e7).toISOString(),
		});
	const card = (...drawn) => h("div", { class: "card" }, chart(...drawn));
	const lines = (format) => [null, null, null, { lines: true, format }];
	return h(
		"section",
		{ class: "stack" },
		card("Results per day (UTC)", days, RESULTS, utcDay, null, source ? null : link, page.go),
		card("Shares per day (UTC)", days, SHARES, utcDay, ...lines(percent)),
		card("Time to delivery per day (UTC)", days, TIMES, utcDay, ...lines(span)),
	);
}

/** One line per provider; of one provider, one line per day. */
async function exportFile(found, chosen) {
	const [{ cell }, { save }] = await Promise.all([import("../suppression-files.js"), import("../message-body.js")]);
	const [name, entries] = chosen.provider ? ["start", found.days] : ["provider", found.providers];
	const rows = entries.map((each) =>
		[cell(each[name] ?? OTHER), ...FIELDS.map((field) => each[field] ?? "")].join(","),
	);
	const text = `${[[name, ...FIELDS].join(","), ...rows].join("\r\n")}\r\n`;
	save(new Blob([text], { type: "text/csv" }), "deliverability.csv");
}

/** Which mail: all, of a domain, of a stream, with a template, or from a source address. */
function mailField(page, chosen, { domains, streams, templates, sources }) {
	const { domain, stream, template, source } = chosen;
	const option = (kind, name) =>
		h("option", { value: `${kind}=${name}`, selected: name === chosen[kind] }, shownName(name));
	const group = (label, kind, names) => {
		const listed = chosen[kind] && !names.includes(chosen[kind]) ? [chosen[kind], ...names] : names;
		return (
			listed.length > 0 &&
			h(
				"optgroup",
				{ label },
				listed.map((name) => option(kind, name)),
			)
		);
	};
	const choose = (event) => {
		const [, kind, name] = /^(\w*)=(.*)$/.exec(event.target.value);
		page.go(query(HERE, { ...chosen, domain: "", stream: "", template: "", source: "", [kind]: name }));
	};
	return h(
		"select",
		{ "aria-label": "Mail", onchange: choose },
		h("option", { value: "=", selected: !domain && !stream && !template && !source }, "All mail"),
		group("Sending domain", "domain", domains),
		group("Stream", "stream", streams),
		group("Template", "template", templates),
		group("Source address", "source", sources),
	);
}

export default async function deliverability(page) {
	const given = (name) => page.query.get(name) ?? undefined;
	const days = RANGES.find((each) => String(each) === given("days")) ?? 30;
	const chosen = { days };
	for (const name of ["provider", "domain", "stream", "template", "source"]) chosen[name] = given(name);
	const api = query("/v1/deliverability", chosen);
	const [first, { domains }, { templates }, { streams }] = await Promise.all([
		get(api, page.signal).catch(wrongFilter),
		get("/v1/domains", page.signal),
		get("/v1/templates", page.signal),
		get("/v1/streams?days=1", page.signal),
		import("../update.js"),
	]);
	let found = first;
	const content = h("div");
	const draw = async () => {
		const note =
			found.until && h("p", { class: "quiet" }, "Still being computed: data after ", ago(found.until), " is missing.");
		const shown = found.providers.length
			? [
					note,
					!chosen.provider && providers(found.providers, chosen),
					charts(found, chosen, page),
					found.replies.length > 0 && section("What the servers said", replies(found.replies)),
				]
			: empty("No mail", `No mail in the last ${days} days.`);
		(await import("../update.js")).update(content, [shown].flat());
	};
	// The charts are rebuilt, so not while they are in use.
	const isRead = () => content.querySelector("svg:hover, svg:focus-within, .chart details[open]");
	if (first.providers) {
		await draw();
		page.every(60, async () => isRead() || ((found = await get(api, page.signal)), await draw()));
	} else content.append(first);
	const only = chosen.provider === OTHER ? null : chosen.provider;
	const provider =
		chosen.provider && chip(`Provider: ${providerName(only)}`, { remove: query(HERE, { ...chosen, provider: "" }) });
	return fragment(
		head("Deliverability", {
			crumb: { href: query("/dashboard", { days }), title: "Overview" },
			about: "Results, delays and delivery times by provider, without test mail.",
		}),
		toolbar({
			search: mailField(page, chosen, {
				domains: domains.map((each) => each.name),
				streams: streams.map((each) => each.name),
				templates: templates.map((each) => each.alias),
				sources: first.sources ?? [],
			}),
			chips: [
				provider,
				segments(
					"Period",
					RANGES.map((each) => [`${each} days`, query(HERE, { ...chosen, days: each }), each === days]),
				),
			],
			actions: first.providers ? [button("Export CSV", () => exportFile(found, chosen))] : [],
		}),
		content,
	);
}
