// Bounces by class, complaints by provider, and DMARC and TLS reports by domain.
import { get } from "../api.js";
import { chart } from "../chart.js";
import { fragment, h, path, query, s } from "../dom.js";
import { inbox } from "../feedback-inbox.js";
import { code, copyButton, empty, head, notice, rate, section, table } from "../pieces.js";
import { providerName } from "../provider-names.js";
import { count, number, percent, utcDay } from "../time.js";
import { segments } from "../toolbar.js";

const RANGES = [7, 30, 90];
const CLASSES = [
	["invalid_recipient", "No such mailbox", "one"],
	["mailbox_full", "Mailbox full", "two"],
	["policy", "Policy", "three"],
	["reputation", "Reputation", "four"],
	["content", "Content", "five"],
	["authentication", "Authentication", "six"],
	["temporary", "Given up", "seven"],
	["other", "Other", "eight"],
];
const WARNING = 0.001; // complaints per delivery, as the large providers publish: the lines to draw
const LIMIT = 0.003;
const STEPS = { collect: "queued", mend: "bounced", step: "", done: "delivered" };
const PASSED = [
	["passed", "Passed", "delivered"],
	["failed", "Failed", "bounced"],
];
const NUMBER = { class: "number" };
const JUDGED = { too_few: "queued", good: "delivered", high: "deferred" }; // colours of a bar by the mark of its rate

/** A share of a row's width; `lines` are limits to draw. The number appears next to it as text. */
function bar(share, colour, lines = []) {
	const x = (value) => Math.min(1, value) * 1000;
	return s(
		"svg",
		{ class: "share", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" },
		s("rect", { class: "track", width: 1000, height: 10 }),
		s("rect", { class: `fill ${colour}`, width: x(share), height: 10 }),
		lines.map((each) => s("line", { class: "limit", x1: x(each), x2: x(each), y1: 0, y2: 10 })),
	);
}

// ---- mail

function complaints(providers) {
	if (!providers.some((each) => each.delivered || each.complained))
		return h("p", { class: "quiet" }, "No deliveries in this period.");
	const most = Math.max(LIMIT * 1.25, ...providers.map((each) => each.complaint_rate ?? 0));
	const columns = [
		{ title: "Provider" },
		{ title: "Delivered", class: "number" },
		{ title: "Complaints", ...NUMBER },
		{ title: "Rate", ...NUMBER },
		{ title: "Lines: 0.1 % and 0.3 %", class: "share table-only" },
	];
	const rows = providers.map((each) => [
		providerName(each.provider),
		number(each.delivered),
		number(each.complained),
		rate(each.complaint_rate, each.complaint_mark),
		bar((each.complaint_rate ?? 0) / most, JUDGED[each.complaint_mark] ?? "bounced", [WARNING / most, LIMIT / most]),
	]);
	return fragment(
		h(
			"p",
			{ class: "quiet small said" },
			"Large providers expect fewer than 1 complaint per 1,000 deliveries (0.1 %) and reject mail above 0.3 %.",
		),
		table("Complaints by provider", columns, rows, "cards"),
	);
}

function bounces(found) {
	const days = found.days.map((each) => ({ start: each.start, ...each.classes }));
	const there = CLASSES.filter(([key]) => found.classes[key] > 0);
	if (!there.length) return h("p", { class: "quiet" }, "No bounces in this period.");
	return h("div", { class: "card" }, chart("Bounces by class per day (UTC)", days, there, utcDay));
}

function byProvider(providers) {
	const bad = providers.filter((each) => each.bounced || each.late_bounced || each.failed);
	if (!bad.length) return null;
	const columns = [
		{ title: "Provider" },
		...["Bounced", "Late", "Failed", "Bounce rate"].map((title) => ({ title, ...NUMBER })),
		{ title: "Mostly" },
	];
	const rows = bad.map((each) => {
		const [key, name] = CLASSES.toSorted((a, b) => each.classes[b[0]] - each.classes[a[0]])[0];
		return [
			providerName(each.provider),
			number(each.bounced),
			number(each.late_bounced),
			number(each.failed),
			rate(each.bounce_rate, each.bounce_mark),
			each.classes[key] > 0 ? name : "–",
		];
	});
	return section("Bounces by provider", table("Bounces by provider", columns, rows, "cards"));
}

// ---- reports

const record = (name, value) =>
	h(
		"div",
		{ class: "publish" },
		h("p", { class: "small" }, "TXT record ", h("code", { class: "break" }, name), " ", copyButton(name, "the name")),
		code(value, "the record"),
	);

function dmarc(domain) {
	const { dmarc: told } = domain;
	if (!told.reports)
		return empty(
			"No DMARC reports yet",
			"Receivers such as Google, Microsoft and Yahoo report daily who sent mail in the domain's name, and whether it " +
				"passed. Publish this record. If the domain already has a DMARC record, add the rua part to it.",
			record(`_dmarc.${domain.domain}`, told.record),
		);
	const step = told.next_step;
	return fragment(
		notice(STEPS[step.state] ?? "", step.text, h("span", { class: "tag" }, `p=${step.policy ?? "?"}`)),
		step.state === "step" && record(`_dmarc.${domain.domain}`, told.record),
		h("div", { class: "card spaced" }, chart(`DMARC of ${domain.domain} per day (UTC)`, told.days, PASSED, utcDay)),
		h(
			"p",
			{ class: "quiet small said" },
			`${count(told.reports, "report", "reports")}: ${percent(told.pass_rate)} of `,
			`${count(told.messages, "message", "messages")} passed.`,
		),
		sources(domain),
	);
}

function sources({ domain, dmarc: told }) {
	const columns = [
		{ title: "Source" },
		{ title: "Failed", ...NUMBER },
		{ title: "Passed", ...NUMBER },
		{ title: "DKIM", class: "number" },
		{ title: "SPF", class: "number" },
		{ title: "Quarantined", class: "number" },
		{ title: "Refused", class: "number" },
		{ title: "Last seen" },
	];
	const failing = told.sources.filter((each) => each.messages > each.passed);
	if (!failing.length) return h("p", { class: "quiet" }, "All mail in the domain's name passed.");
	const rows = failing.map((each) => [
		each.address === null ? "other sources" : h("code", { class: "break" }, each.address),
		number(each.messages - each.passed),
		number(each.passed),
		number(each.dkim_passed),
		number(each.spf_passed),
		number(each.quarantined),
		number(each.rejected),
		utcDay(each.last_seen),
	]);
	return fragment(
		h("h3", null, "Sources that fail DMARC"),
		table(`Sources that fail for ${domain}`, columns, rows, "cards"),
	);
}

function tls(domain) {
	const { tls: told } = domain;
	if (!told.reports)
		return empty(
			"No TLS reports yet",
			"Servers that send mail to the domain report failed TLS sessions. Publish this record.",
			record(`_smtp._tls.${domain.domain}`, told.record),
		);
	const said =
		`${count(told.reports, "report", "reports")}: ${number(told.failures)} of ` +
		`${count(told.sessions, "session", "sessions")} failed.`;
	const most = Math.max(...told.by_mx.map((each) => each.sessions), 1);
	const columns = [
		{ title: "Mail server" },
		{ title: "Failure" },
		{ title: "Sessions", ...NUMBER },
		{ title: "Share", class: "share table-only" },
	];
	const rows = told.by_mx.map((each) => [
		each.mx === null ? "not reported" : h("code", { class: "break" }, each.mx),
		each.type ?? "other failures",
		number(each.sessions),
		bar(each.sessions / most, "bounced"),
	]);
	return fragment(
		h("p", { class: "quiet small said" }, said),
		rows.length > 0 && table(`TLS failures of ${domain.domain}`, columns, rows, "cards"),
	);
}

function reports(found, wanted, choose) {
	const { domains } = found;
	if (!domains.length)
		return empty(
			"Reports need a domain",
			"Receivers report on your sending domains.",
			h("a", { class: "button", href: "/dashboard/domains" }, "Add a domain"),
		);
	const shown =
		domains.find((each) => each.domain === wanted) ??
		domains.find((each) => each.dmarc.reports || each.tls.reports) ??
		domains[0];
	const select = h(
		"select",
		{ id: "domain", onchange: () => choose(select.value) },
		domains.map((each) => h("option", { value: each.domain, selected: each === shown }, each.domain)),
	);
	return fragment(
		domains.length > 1 && h("div", { class: "row chosen" }, h("label", { for: "domain" }, "Domain"), select),
		!found.takes_reports &&
			notice(
				"deferred",
				"This server does not receive mail, so it gets no reports. The operator can set inbound.bind.",
			),
		section(`DMARC: mail from ${shown.domain}`, dmarc(shown)),
		section(`TLS: mail to ${shown.domain}`, tls(shown)),
		h(
			"p",
			{ class: "quiet small said" },
			"All records of the domain and their state: ",
			h("a", { href: path("/dashboard/domains", shown.domain) }, shown.domain),
			".",
		),
	);
}

export default async function feedback(page) {
	const days = RANGES.includes(Number(page.query.get("days"))) ? Number(page.query.get("days")) : 30;
	const domain = page.query.get("domain") ?? "";
	const address = (values) => query("/dashboard/feedback", { days: days === 30 ? "" : days, domain, ...values });
	const [found, kept] = await Promise.all([
		get(`/v1/feedback?days=${days}`, page.signal),
		get("/v1/feedback/inbox", page.signal),
	]);
	const late = found.days.reduce((sum, each) => sum + each.late_bounced, 0);
	return fragment(
		head("Feedback", {
			about: "Bounces, complaints, and reports about your domains.",
		}),
		segments(
			"Period",
			RANGES.map((each) => [`${each} days`, address({ days: each === 30 ? "" : each }), each === days]),
		),
		section(
			"Bounces by class",
			bounces(found),
			late > 0 && h("p", { class: "quiet small said" }, `${count(late, "bounce", "bounces")} arrived after delivery.`),
		),
		byProvider(found.providers),
		section("Complaints by provider", complaints(found.providers)),
		section("Mail to read", inbox(kept.mails)),
		reports(found, domain, (chosen) => page.go(address({ domain: chosen }))),
	);
}
