// The source addresses: whether they are in use, their names in DNS, warm-up, and results by provider.
import { get } from "../api.js";
import { chart } from "../chart.js";
import { fragment, h } from "../dom.js";
import { badge, code, empty, facts, head, table } from "../pieces.js";
import { providerName } from "../provider-names.js";
import { ago, number, utcDay } from "../time.js";
import { update } from "../update.js";
import { warmupTable } from "../warmups.js";

const DAY = 86_400_000; // milliseconds
const DAYS = 30;
const CHARTED = 2; // providers of a source, those with most mail
const KINDS = [
	["delivered", "Delivered", "delivered"],
	["deferred", "Deferred", "deferred"],
	["blocked", "Blocked", "bounced"],
];
const OTHER = "other"; // all pools without a name in the settings
const STATES = {
	in_use: ["success", "in use"],
	taken_out: ["failed", "out"],
	unknown: ["", "not tested yet"],
};
const SETTINGS = `[delivery.sources.news]
ipv4 = "192.0.2.11"
hostname = "news.example.com"

[delivery.streams.broadcast]
sources = ["news"]`;

const numeric = (title) => ({ title, class: "number" });
const COLUMNS = [
	{ title: "Provider" },
	numeric("Delivered"),
	numeric("Deferred"),
	numeric("Blocked"),
	{ title: "Last reply that deferred or blocked mail", class: "half" },
	{ title: "At", class: "side" },
];

const provider = (pool) => providerName(pool === OTHER ? null : pool);

/** What a provider did with the mail of each of the last days. */
function history({ provider: pool, days }) {
	const today = Math.floor(Date.now() / DAY);
	const buckets = Array.from({ length: DAYS }, (_, at) => {
		const start = new Date((today - DAYS + 1 + at) * DAY).toISOString();
		const day = days.find((each) => each.date === start.slice(0, 10));
		return { start, delivered: 0, deferred: 0, blocked: 0, ...day };
	});
	return chart(`${provider(pool)} by day (UTC)`, buckets, KINDS, utcDay);
}

const results = (source) =>
	table(
		`Results of ${source.name} by provider`,
		COLUMNS,
		source.providers.map((each) => ({
			id: each.provider,
			cells: [
				provider(each.provider),
				number(each.delivered),
				number(each.deferred),
				number(each.blocked),
				each.last_reply === null ? "–" : h("bdi", { class: "mono break" }, each.last_reply),
				ago(each.last_reply_at, "–"),
			],
		})),
		"cards",
	);

const NO_ANSWER = ["", "DNS does not respond"];
const REVERSE = { true: ["success", "reverse name matches"], false: ["failed", "reverse name does not match"] };

/** An address with its reverse names, and whether the host name is one of them and has the address. */
const reverse = ({ address, names, matches }) =>
	h(
		"div",
		null,
		h("bdi", { class: "mono" }, address),
		" ",
		h("bdi", null, names.join(", ")),
		" ",
		badge(...(matches === false && !names.length ? ["failed", "no reverse name"] : (REVERSE[matches] ?? NO_ANSWER))),
	);

/** The blocklists that list an address, and those that did not answer. */
function listings(source) {
	const lists = source.blocklists;
	const silent = lists.filter((each) => each.listed === null);
	return [
		...lists
			.filter((each) => each.listed)
			.map((each) =>
				h(
					"div",
					null,
					badge("failed", `listed at ${each.blocklist}`),
					" ",
					h("bdi", null, each.address, ": ", each.detail),
				),
			),
		!lists.some((each) => each.listed) && silent.length < lists.length && badge("success", "on no blocklist"),
		silent.length > 0 &&
			h("div", null, "No answer from ", h("bdi", null, [...new Set(silent.map((each) => each.blocklist))].join(", "))),
	];
}

const outAt = (hold) => [
	`Out at ${provider(hold.pool)}`,
	hold.node && `on node ${hold.node}: `,
	h("bdi", null, hold.reason),
	", since ",
	ago(hold.since),
	hold.next_probe_at && ["; next test message ", ago(hold.next_probe_at)],
];

const about = (source) =>
	facts([
		source.reason && ["Reason", h("bdi", null, source.reason)],
		...source.held.map(outAt),
		["Addresses", source.ptr.map(reverse)],
		source.blocklists.length > 0 && ["Blocklists", listings(source)],
		["Host name", h("bdi", null, source.hostname)],
		["Node", source.node ?? "every node that can bind to it"],
		["Streams", source.streams.join(", ") || "none; an account can use it"],
	]);

const part = (source) =>
	h(
		"section",
		{ "data-key": source.name, "aria-label": source.name },
		h("div", { class: "titled" }, h("h2", null, h("bdi", null, source.name), " ", badge(...STATES[source.state]))),
		h(
			"div",
			{ class: "stack" },
			h("div", { class: "card" }, about(source)),
			source.warmups.length > 0 && warmupTable(source.warmups),
			source.providers.length > 0 ? results(source) : h("p", { class: "quiet" }, "No mail in the last 30 days."),
			source.providers.slice(0, CHARTED).map((each) => h("div", { class: "card" }, history(each))),
		),
	);

export default async function sources(page) {
	const content = h("div");
	async function draw() {
		const { sources: found } = await get("/v1/admin/sources", page.signal);
		const none = () =>
			empty(
				"No sources",
				"The system chooses the address that mail leaves from. To choose it, add lines like these to the settings.",
				code(SETTINGS, "the settings", "lines"),
			);
		update(content, found.length > 0 ? found.map(part) : none());
	}
	await draw();
	page.every(60, draw); // each time looks up the reverse names
	return fragment(
		head("Sources", { about: "The addresses that mail leaves from, with their results of the last 30 days." }),
		content,
	);
}
