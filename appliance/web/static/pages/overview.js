// The overview: warnings, the numbers, and the first steps of a new account.
import { get } from "../api.js";
import { chart } from "../chart.js";
import { fragment, h, path, query, style } from "../dom.js";
import { button, head, notice, section } from "../pieces.js";
import { hour, number, percent, span, utcDay } from "../time.js";

const RANGES = [7, 30, 90];
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

function tile(name, value, more) {
	return h("div", { class: "tile" }, h("dt", null, name), h("dd", null, value, h("small", null, more)));
}

function tiles(totals, account) {
	const final = totals.delivered + totals.bounced + totals.failed;
	return h(
		"dl",
		{ class: "tiles" },
		tile("Sent", number(totals.sent)),
		tile("Delivered", number(totals.delivered), final ? percent(totals.delivered / final) : ""),
		tile("Bounced", number(totals.bounced), final ? percent(totals.bounce_rate) : ""),
		tile("Failed", number(totals.failed)),
		tile("Time to delivery", span(totals.median_ms), totals.p95_ms === null ? "" : `95 %: ${span(totals.p95_ms)}`),
		tile("Credits", account.credits === null ? "No limit" : number(account.credits)),
	);
}

function step(done, title, text, action) {
	return h(
		"li",
		{ class: done ? "done" : "" },
		h("span", { class: "tick" }, done ? "✓" : "", h("span", { class: "gone" }, done ? "done" : "to do")),
		h("div", null, h("h3", null, title), !done && h("p", { class: "quiet small" }, text)),
		!done && action,
	);
}

async function firstSteps(page) {
	const [{ emails }, { domains }, { api_keys: keys }, { smtp_credentials: credentials }] = await Promise.all(
		["/v1/emails?limit=1", "/v1/domains?limit=100", "/v1/api-keys?limit=1", "/v1/smtp-credentials?limit=1"].map(
			(each) => get(each, page.signal),
		),
	);
	const usable = domains.some((each) => each.status !== "pending");
	const pending = domains.find((each) => each.status === "pending");
	const keyed = keys.length + credentials.length > 0;
	if (emails.length && usable && keyed) return null;
	const link = (href, text) => h("a", { class: "button", href }, text);
	return section(
		"First steps",
		h(
			"ol",
			{ class: "card steps" },
			step(
				domains.length > 0,
				"Add the domain you send from",
				"Mail is sent from addresses of your own domain.",
				link("/dashboard/domains", "Add a domain"),
			),
			step(
				usable,
				"Publish its DNS records",
				"Receivers check them. We check them, too, and tell what is missing.",
				link(pending ? path("/dashboard/domains", pending.name) : "/dashboard/domains", "Show the records"),
			),
			step(
				keyed,
				"Create an API key or an SMTP credential",
				"Your program sends with it.",
				link("/dashboard/keys", "Create one"),
			),
			step(
				emails.length > 0,
				"Send a test",
				"To yourself, and watch it arrive.",
				button("Send a test", () => page.sendTest()),
			),
		),
	);
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
		const steps = await firstSteps(page);
		const drawing = hourly
			? chart("Recipients per hour", stats.hours, hour)
			: chart("Recipients per day (UTC)", stats.days, utcDay);
		const isNew = steps && stats.totals.sent === 0; // it is not shown a page of zeros
		const tables = !isNew && (await import("../overview-tables.js")).tables(stats);
		content.replaceChildren(
			fragment(
				h("div", null, account.warnings.filter((each) => !(steps && each.code === "no_domain")).map(warning)),
				steps,
				!isNew && [
					h(
						"section",
						null,
						h("div", { class: "titled" }, h("h2", null, `Last ${days} days`), ranges(days, hourly)),
						tiles(stats.totals, account),
					),
					h("section", null, h("div", { class: "card" }, drawing)),
					tables,
				],
			),
		);
	}

	await Promise.all([style("overview"), draw()]);
	page.every(10, () =>
		content.contains(document.activeElement) || content.querySelector("details[open], svg:hover")
			? Promise.resolve()
			: draw(),
	);
	return fragment(head("Overview", { actions: [button("Send a test", () => page.sendTest(), "primary")] }), content);
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
