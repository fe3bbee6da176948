// The overview: warnings, the numbers, and the first steps of a new account.
import { get } from "../api.js";
import { fragment, h, path, query, style } from "../dom.js";
import { button, head, notice } from "../pieces.js";
import { hour, number, percent, span, utcDay } from "../time.js";

const RANGES = [7, 30, 90];
const KINDS = ["Sent", "Delivered", "Bounced", "Failed"].map((name) => [name.toLowerCase(), name, name.toLowerCase()]);
const GRAVE = new Set(["account_suspended", "no_credits", "disk_low", "mail_paused", "webhook_failing"]);
const FIXES = {
	no_domain: () => "/dashboard/domains",
	domain_pending: (subject) => path("/dashboard/domains", subject),
	mail_paused: () => "/dashboard/messages?status=queued",
	pool_held: () => "/dashboard/messages?status=queued",
	webhook_failing: () => "/dashboard/webhook",
	no_credits: () => "/dashboard/account",
};

function warning(each) {
	const href = FIXES[each.code]?.(each.subject);
	return notice(GRAVE.has(each.code) ? "bounced" : "deferred", each.text, href && h("a", { href }, "Look"));
}

function tile(name, value, more, outcome) {
	const title = outcome ? h("a", { href: query("/dashboard/messages", { outcome }) }, name) : name;
	return h("div", { class: "tile" }, h("dt", null, title), h("dd", null, value, h("small", null, more)));
}

function tiles(totals, account) {
	const final = totals.delivered + totals.bounced + totals.failed;
	return h(
		"dl",
		{ class: "tiles" },
		tile("Sent", number(totals.sent)),
		tile("Delivered", number(totals.delivered), final ? percent(totals.delivered / final) : "", "delivered"),
		tile("Bounced", number(totals.bounced), final ? percent(totals.bounce_rate) : "", "bounced"),
		tile("Failed", number(totals.failed), "", "failed"),
		tile("Time to delivery", span(totals.median_ms), totals.p95_ms === null ? "" : `95 %: ${span(totals.p95_ms)}`),
		tile("Credits", account.credits === null ? "No limit" : number(account.credits)),
	);
}

/** The first steps that are left; an account that sends and has nothing to be told has done them. */
async function left(page, account, stats) {
	if (stats.totals.sent && !account.warnings.length) return null;
	return (await import("../first-steps.js")).firstSteps(page);
}

async function drawing(stats, hourly) {
	const { chart } = await import("../chart.js");
	return hourly
		? chart("Recipients per hour", stats.hours, KINDS, hour, KINDS[0])
		: chart("Recipients per day (UTC)", stats.days, KINDS, utcDay, KINDS[0]);
}

/** Shows content, at first as it is: what updates it is not needed for that. */
async function put(place, ...content) {
	if (!place.hasChildNodes()) place.append(fragment(content));
	else (await import("../update.js")).update(place, content);
}

export default async function overview(page) {
	const days = RANGES.includes(Number(page.query.get("days"))) ? Number(page.query.get("days")) : 7;
	const hourly = days === 7 && page.query.get("by") !== "day";
	const content = h("div");

	async function draw() {
		const [account, stats] = await Promise.all([
			get("/v1/account", page.signal),
			get(`/v1/stats?days=${days}`, page.signal),
		]);
		const steps = await left(page, account, stats);
		const isNew = steps && stats.totals.sent === 0; // which is not shown a page of zeros
		await put(
			content,
			h("div", null, account.warnings.filter((each) => !(steps && each.code === "no_domain")).map(warning)),
			steps,
			!isNew && [
				h(
					"section",
					null,
					h("div", { class: "titled" }, h("h2", null, `Last ${days} days`), ranges(days, hourly)),
					tiles(stats.totals, account),
				),
				h("section", null, h("div", { class: "card" }, await drawing(stats, hourly))),
				(stats.bounce_classes.length > 0 || stats.queue.length > 0 || stats.sandbox > 0) &&
					(await import("../overview-tables.js")).tables(stats),
			],
		);
	}

	await Promise.all([style("overview"), draw()]);
	// The chart is made anew, so not while it is read.
	const isRead = () => content.querySelector("svg:hover, svg:focus-within, .chart details[open]");
	page.every(10, async () => isRead() || draw());
	const kind = content.querySelector(".steps") ? "" : "primary"; // the first step that is left has that
	return fragment(head("Overview", { actions: [button("Send a test", () => page.sendTest(), kind)] }), content);
}

function ranges(days, hourly) {
	const link = (text, values, current) =>
		h("a", { class: "button", href: query("/dashboard", values), "aria-current": current && "true" }, text);
	return h(
		"nav",
		{ class: "row", "aria-label": "Time shown" },
		days === 7 && [link("Per hour", {}, hourly), link("Per day", { by: "day" }, !hourly), h("span", { class: "gap" })],
		RANGES.map((each) => link(`${each} days`, { days: each }, each === days)),
	);
}
