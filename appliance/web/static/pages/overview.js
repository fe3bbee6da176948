// The overview: warnings, statistics and first steps.
import { get } from "../api.js";
import { button, head } from "../basics.js";
import { fragment, h, may, query } from "../dom.js";
import { tile, tiles } from "../tile.js";
import { segments } from "../toolbar.js";
import { hour, number, percent, span, utcDay } from "../time.js";

const RANGES = [7, 30, 90];
const KINDS = ["Sent", "Delivered", "Bounced", "Failed", "Suppressed", "Cancelled"].map((name) => [
	name.toLowerCase(),
	name,
	name.toLowerCase(),
]);
const RARE = 4; // kinds from here on are shown only if not zero
const RETURNED = [
	["late_bounced", "Late bounced"],
	["complained", "Complained"],
];

/** Messages accepted in a period, with recipients of this kind. */
const list = (kind, since, until) =>
	query("/dashboard/messages", { outcome: kind === "sent" ? "" : kind, since, until });

/** The previous period's number, and the change. */
const PERCENT = { style: "percent", signDisplay: "exceptZero" };
const change = (now, before) => [
	before > 0 && `${(now / before - 1).toLocaleString("en", PERCENT).replace("%", " %").replace("-", "−")}, `,
	`${number(before)} before`,
];
function numbers({ totals, previous, days }, kinds, account, rate) {
	const tried = totals.delivered + totals.bounced + totals.failed;
	const more = tried
		? { delivered: percent(totals.delivered / tried), bounced: rate(totals.bounce_rate, totals.bounce_mark) }
		: {};
	if (totals.complained) more.complained = rate(totals.complaint_rate, totals.complaint_mark);
	return tiles(
		[...kinds, ...RETURNED.filter(([kind]) => totals[kind])].map(([kind, name]) =>
			tile(name, number(totals[kind]), {
				kind,
				href: list(kind, days[0].start),
				notes: [more[kind], previous && kind in previous && change(totals[kind], previous[kind])],
				spark: kind in days[0] ? days.map((day) => day[kind]) : undefined,
			}),
		),
		tile("Time to delivery", span(totals.median_ms), {
			notes: [totals.p95_ms !== null && `95 %: ${span(totals.p95_ms)}`],
		}),
		tile("Credits", account.credits === null ? "Unlimited" : number(account.credits)),
	);
}

/** The remaining first steps; none for an account that sends and has no warnings. */
async function left(page, account, stats) {
	if ((stats.totals.sent && !account.warnings.length) || !may("addDomain")) return null;
	return (await import("../first-steps.js")).firstSteps(page);
}

async function drawing(stats, kinds, hourly, go) {
	const { chart } = await import("../chart.js");
	const link = (kind, { start }) =>
		list(kind, start, new Date(Date.parse(start) + (hourly ? 1 : 24) * 3.6e6).toISOString());
	return hourly
		? chart("Recipients per hour", stats.hours, kinds, hour, KINDS[0], link, go)
		: chart("Recipients per day (UTC)", stats.days, kinds, utcDay, KINDS[0], link, go);
}

/** Show content, first without the update code. */
async function put(place, ...content) {
	if (!place.hasChildNodes()) place.append(fragment(content));
	else (await import("../update.js")).update(place, content);
}

export default async function overview(page) {
	const days = RANGES.find((each) => String(each) === page.query.get("days")) ?? 7;
	const by = page.query.get("by");
	const content = h("div");
	let hasSteps = true; // until all are done: they take four more requests

	async function draw() {
		const [account, stats, { items }, { problems: undelivered }] = await Promise.all([
			get("/v1/account", page.signal),
			get(`/v1/stats?days=${days}`, page.signal),
			get("/v1/attention", page.signal),
			get("/v1/problems", page.signal),
		]);
		const problems = items.length > 0 && (await import("../attention.js"));
		const warnings = problems ? problems.others(account.warnings, items) : account.warnings;
		const kinds = KINDS.filter(([kind], at) => at < RARE || stats.totals[kind]);
		const busy = stats.hours.filter((each) => kinds.some(([kind]) => each[kind])).length;
		const hourly = days === 7 && (by ? by === "hour" : busy * 2 > stats.hours.length);
		const more = stats.totals.bounced || stats.totals.failed || stats.sandbox || stats.queue.length;
		const steps = hasSteps ? await left(page, account, stats) : null;
		hasSteps = Boolean(steps);
		const isNew = steps && stats.totals.sent === 0; // do not show a page of zeros
		await put(
			content,
			problems && problems.attention(items),
			warnings.length > 0 && (await import("../warnings.js")).warnings(warnings, steps),
			steps,
			!isNew && [
				h(
					"section",
					null,
					h("div", { class: "titled" }, h("h2", null, `Last ${days} days`), ranges(days, hourly)),
					numbers(stats, kinds, account, (await import("../pieces.js")).rate),
				),
				h("section", null, h("div", { class: "card" }, await drawing(stats, kinds, hourly, page.go))),
				more > 0 && (await (await import("../overview-tables.js")).tables(stats, undelivered)),
			],
		);
	}

	await draw();
	// The chart is rebuilt, so not while it is in use.
	const isRead = () => content.querySelector("svg:hover, svg:focus-within, .chart details[open]");
	page.every(10, async () => isRead() || draw());
	const kind = content.querySelector(".steps") ? "" : "primary"; // the first step already has this button
	const test = button("Send a test", () => page.sendTest(), kind, { needs: "sendTestEmail" });
	return fragment(head("Overview", { actions: [test] }), content);
}

function ranges(days, hourly) {
	const link = (text, values, current) => [text, query("/dashboard", values), current];
	const steps = [link("Per hour", { by: "hour" }, hourly), link("Per day", { by: "day" }, !hourly)];
	return h(
		"div",
		{ class: "row" },
		days === 7 && segments("Resolution", steps),
		segments(
			"Period",
			RANGES.map((each) => link(`${each} days`, { days: each }, each === days)),
		),
		h(
			"div",
			{ class: "row" },
			h("a", { class: "button", href: `/dashboard/statistics?days=${days}` }, "Break down"),
			h("a", { class: "button", href: `/dashboard/deliverability?days=${days}` }, "Deliverability"),
		),
	);
}
