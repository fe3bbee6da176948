// The streams: volume, results and settings of each, and the keys, credentials and templates that send by it.
import { get } from "../api.js";
import { fragment, h, query } from "../dom.js";
import { templatePath } from "../lists.js";
import { badge, facts, head, rate } from "../pieces.js";
import { count, number, percent, span } from "../time.js";
import { tile, tiles } from "../tile.js";
import { segments } from "../toolbar.js";
import { update } from "../update.js";

const HERE = "/dashboard/streams";
const RANGES = [7, 30, 90];
const LISTED = 8; // keys, credentials or templates of a stream shown by name

const ORDER = {
	high: "Goes first",
	low: "Goes after other streams, and keeps a tenth of each provider's turns",
};

/** Names with links, and how many more there are. */
const names = (entries, link) =>
	entries.length === 0
		? "none"
		: [
				entries
					.slice(0, LISTED)
					.map(([id, name], at) => [at > 0 && ", ", h("a", { href: link(id) }, h("bdi", null, name))]),
				entries.length > LISTED && ` and ${number(entries.length - LISTED)} more`,
			];

const named = (users) => users.map((each) => [each.id, each.name || (each.hint ? `…${each.hint}` : each.id)]);
const sentBy = (stream) => (key) => query("/dashboard/messages", { key, stream });

function numbers(each, stats, days) {
	const mail = (filters) => query("/dashboard/messages", { stream: each.name, since: stats.days[0].start, ...filters });
	const tried = each.delivered + each.bounced + each.failed;
	const spark = (kind) => stats.days.map((day) => day[kind]);
	return tiles(
		tile("Sent", number(each.sent), { kind: "sent", href: mail({}), spark: spark("sent") }),
		tile("Delivered", number(each.delivered), {
			kind: "delivered",
			href: mail({ outcome: "delivered" }),
			notes: [tried > 0 && percent(each.delivered / tried)],
			spark: spark("delivered"),
		}),
		tile("Bounced", number(each.bounced), {
			kind: "bounced",
			href: mail({ outcome: "bounced" }),
			notes: [tried > 0 && rate(each.bounce_rate, each.bounce_mark)],
			spark: spark("bounced"),
		}),
		tile("Complained", number(each.complained), {
			href: mail({ outcome: "complained" }),
			notes: [each.delivered > 0 && rate(each.complaint_rate, each.complaint_mark)],
		}),
		tile("Unsubscribed", number(each.unsubscribes), {
			href: query("/dashboard/suppressions", { stream: each.name }),
			notes: [each.unsubscribe_rate !== null && percent(each.unsubscribe_rate)],
		}),
		tile("Time to delivery", span(stats.totals.median_ms), {
			href: query("/dashboard/deliverability", { days, stream: each.name }),
			notes: [stats.totals.p95_ms !== null && `95 %: ${span(stats.totals.p95_ms)}`],
		}),
	);
}

function settings(each) {
	const isDefault = each.name === "transactional";
	return facts([
		["Order", ORDER[each.priority] ?? "No longer configured. Its queued mail still goes."],
		["Unsubscribe link", each.unsubscribe ? "in every message, which has one recipient" : "only by tag or template"],
		each.unsubscribed > 0 && [
			"Unsubscribed",
			h(
				"a",
				{ href: query("/dashboard/suppressions", { stream: each.name }) },
				count(each.unsubscribed, "address", "addresses"),
			),
		],
		["API keys", names(named(each.api_keys), sentBy(each.name)), isDefault && each.api_keys.length > 0 && " (default)"],
		["SMTP credentials", names(named(each.smtp_credentials), sentBy(each.name))],
		[
			"Templates",
			names(
				each.templates.map((alias) => [alias, alias]),
				templatePath,
			),
		],
	]);
}

export default async function streams(page) {
	const days = RANGES.find((each) => String(each) === page.query.get("days")) ?? 30;
	const content = h("div");
	async function draw() {
		const { streams: found } = await get(query("/v1/streams", { days }), page.signal);
		const stats = await Promise.all(
			found.map((each) => get(query("/v1/stats", { days, stream: each.name }), page.signal)),
		);
		update(
			content,
			...found.map((each, at) =>
				h(
					"section",
					{ "data-key": each.name, "aria-label": each.name },
					h(
						"div",
						{ class: "titled" },
						h("h2", null, h("bdi", null, each.name), " ", each.priority === null && badge("failed", "not configured")),
						h(
							"div",
							{ class: "row" },
							h("a", { class: "button", href: query("/dashboard/messages", { stream: each.name }) }, "Messages"),
							h(
								"a",
								{ class: "button", href: query("/dashboard/deliverability", { days, stream: each.name }) },
								"Deliverability",
							),
						),
					),
					h("div", { class: "stack" }, numbers(each, stats[at], days), h("div", { class: "card" }, settings(each))),
				),
			),
		);
	}
	await draw();
	page.every(30, draw);
	return fragment(
		head("Streams", {
			about: "Kinds of mail that are kept apart: in the queue, in unsubscribing and in these numbers.",
		}),
		segments(
			"Period",
			RANGES.map((each) => [`${each} days`, query(HERE, { days: each }), each === days]),
		),
		content,
	);
}
