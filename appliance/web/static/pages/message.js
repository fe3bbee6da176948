// One message: facts, delivery progress, problems with actions, webhook deliveries and content.
import { get, post } from "../api.js";
import { bytes } from "../bytes.js";
import { fragment, h, may, path, query, s, toast } from "../dom.js";
import { confirmed } from "../form.js";
import { outcomes, stateBadge, templatePath } from "../lists.js";
import { content, read } from "../message-body.js";
import { button, copyButton, errorText, facts, head, skeleton } from "../pieces.js";
import { postsOf } from "../posts.js";
import { isProblem, sendAgain } from "../problems.js";
import { tabs } from "../tabs.js";
import { timeline } from "../timeline.js";
import { ago, count, number, when } from "../time.js";
import { update } from "../update.js";

const HOME = "/dashboard/messages";
const FOLDED = 4; // number of recipients above which delivered ones are collapsed

// Milliseconds around the next attempt in which the page refreshes every second.
const NEAR = 30_000;

const isScheduled = (message) => message.recipients.some((each) => each.outcome === "scheduled");
/** The times at which something happens next. */
const coming = (message) => [
	...(isScheduled(message) ? [message.scheduled_at] : []),
	...message.recipients.map((each) => each.next_attempt_at).filter(Boolean),
];
const isNear = (message) => coming(message).some((at) => Math.abs(Date.parse(at) - Date.now()) < NEAR);
const waits = (message) => coming(message).length > 0;

// Display order of recipients: problems first.
const ORDER = ["complained", "late_bounced", "bounced", "failed", "suppressed", "cancelled", "deferred", "queued"];
ORDER.push("scheduled", "delivered");
const rank = (recipient) => ORDER.indexOf(recipient.outcome);
const LONG = 160; // characters of a field to show at once

/** A header field, collapsed if long. */
function field(name, text) {
	if (text.length <= LONG) return [name, h("bdi", { class: "break" }, text)];
	const first = h("summary", { class: "row" }, h("bdi", { class: "break" }, `${text.slice(0, LONG)}…`));
	return [name, h("details", { "data-key": name }, first, h("bdi", { class: "break" }, text))];
}

/** The facts at the top: from, to, tags, template, id, times. `found` is the body, if stored. */
function summary(message, found, home) {
	const named = (name) => found?.headers.find((each) => each.name.toLowerCase() === name)?.value;
	const to = named("to");
	const cc = named("cc");
	const visible = `${to} ${cc}`.toLowerCase();
	const hidden = message.recipients.map((each) => each.email).filter((each) => !visible.includes(each.toLowerCase()));
	const own = home === HOME;
	const link =
		message.template && (own ? h("a", { href: templatePath(message.template) }, message.template) : message.template);
	const repeats = named("x-service-repeats");
	return facts([
		["From", h("bdi", { class: "break" }, message.from)],
		to && field("To", to),
		cc && field("Cc", cc),
		hidden.length > 0 && field(found ? "Bcc" : "Recipients", hidden.join(", ")),
		message.tags.length > 0 && [
			"Tags",
			message.tags.map((tag) => h("a", { class: "tag", href: query(home, { tag }) }, tag)),
		],
		["Stream", h("a", { class: "tag", href: query(home, { stream: message.stream }) }, message.stream)],
		message.metadata && [
			"Metadata",
			Object.entries(message.metadata).map(([key, value]) =>
				h("a", { class: "tag", href: query(home, { metadata: `${key}:${value}` }) }, `${key}: ${value}`),
			),
		],
		message.metadata?.forwards?.startsWith("inb_") && [
			"Forwards",
			h(
				"a",
				{ class: "mono break", href: path("/dashboard/received", message.metadata.forwards) },
				message.metadata.forwards,
			),
		],
		link && ["Template", link, ` version ${message.template_version}`],
		repeats && ["Repeats", h("a", { class: "mono break", href: path(home, repeats) }, repeats)],
		["Message id", h("code", { class: "break" }, message.id), copyButton(message.id, "message id")],
		["Accepted", when(message.created_at), ` by ${{ api: "the API", smtp: "SMTP", test: "a test" }[message.source]}`],
		message.scheduled_at && [
			isScheduled(message) ? "Goes out" : "Scheduled for",
			when(message.scheduled_at),
			...(isScheduled(message) ? [", ", ago(message.scheduled_at)] : []),
		],
		finished(message) && ["Last result", when(finished(message))],
	]);
}

/** When the last recipient became final; null while one is queued. */
function finished(message) {
	const ends = message.recipients.map(
		(each) => each.delivered_at ?? each.bounced_at ?? each.attempts.at(-1)?.started_at,
	);
	return waits(message) ? null : ends.filter(Boolean).sort().at(-1);
}

/** Recipients by status: a bar, and the numbers in words. */
function counts(message) {
	const found = outcomes(message);
	const shown = ORDER.filter((each) => found[each])
		.map((each) => [each, found[each]])
		.reverse();
	let at = 0;
	return [
		s(
			"svg",
			{
				viewBox: `0 0 ${message.recipients.length} 1`,
				preserveAspectRatio: "none",
				"aria-hidden": "true",
			},
			shown.map(([status, many]) => {
				const bar = s("rect", { class: status, x: at, y: 0, width: many, height: 1 });
				at += many;
				return bar;
			}),
		),
		h(
			"p",
			{ class: "counts" },
			shown.map(([status, many], index) => [
				index > 0 && " · ",
				h("span", { class: status }, `${number(many)} ${status.replace("_", " ")}`),
			]),
		),
	];
}

function details(message) {
	return facts([
		["Envelope sender", h("code", { class: "break" }, message.envelope_from)],
		["Size", bytes(message.size)],
		["Credits", `${count(message.credits_reserved, "credit", "credits")}, ${message.billing_status}`],
		[
			"Accepted with request",
			h(
				"a",
				{ class: "mono break", href: path("/dashboard/requests", message.accepted_request_id) },
				message.accepted_request_id,
			),
			copyButton(message.accepted_request_id, "request id"),
		],
	]);
}

function stories(message, go) {
	const many = message.recipients.length >= FOLDED;
	return [...message.recipients]
		.sort((one, other) => rank(one) - rank(other))
		.map((each) => timeline(message, each, many && each.outcome === "delivered", go));
}

/** The list that the user came from, with its filters. */
function list(home) {
	const from = history.state?.from ?? "";
	return from.startsWith(`${home}?`) ? from : home;
}

export default async function message(page) {
	const { api = "/v1/emails", home = HOME, account } = page.of ?? {}; // `of`: another account, for administrators
	const address = path(api, page.params[0]);
	const go = account ? null : page.go;
	let failed = null;
	const body = () => read(address, page.signal).catch((error) => void (failed = error));
	// All at once, for slow links. Of another account's message, read nothing early: each read is logged.
	const early = account ? [] : [body(), postsOf(page.params[0], page.signal, () => tell())];
	let shown = await get(address, page.signal);
	const found = account ? shown.body_kept && (await body()) : await early[0];
	const told = h("div");
	const top = h("div", { class: "card summary" }, summary(shown, found, home));
	const tally = h("div", { class: "tally" }, counts(shown));
	const story = h("div", null, stories(shown, go));
	const state = h("span", null, stateBadge(shown));
	const about = h("div", { class: "card" }, details(shown));
	const cancel = button(
		"Cancel message",
		async () => {
			if (
				!(await confirmed(
					"Cancel this message?",
					"All queued and scheduled recipients are cancelled. " +
						"Their credits are returned. " +
						"A delivery in progress may still complete.",
					"Cancel message",
					"Keep message",
				))
			)
				return;
			const { cancelled } = await post(`${address}/cancel`);
			toast(`Cancelled for ${count(cancelled, "recipient", "recipients")}`);
			await renew();
		},
		"danger",
	);
	const reschedule = button("Reschedule", async () => (await import("../schedule.js")).reschedule(shown, renew));
	const retry = button("Try now", async () => {
		const { retried } = await post(`${address}/retry`);
		toast(
			retried ? `Trying ${count(retried, "recipient", "recipients")} now` : "Tried in the last minute. Wait a moment.",
		);
		await renew();
	});
	const undelivered = () =>
		shown.recipients.filter((each) => isProblem(each) && each.outcome !== "complained" && !each.next_attempt_at);
	const again = button("", () => sendAgain(shown, undelivered(), page.go));
	const offer = () => {
		const many = undelivered().length;
		cancel.hidden = !waits(shown) || !may("cancelEmail");
		reschedule.hidden = !isScheduled(shown) || !may("cancelEmail");
		retry.hidden = !waits(shown) || isScheduled(shown) || !may("retryEmail");
		again.hidden = many < 2 || !shown.body_kept || !may("resendEmail");
		again.textContent = `Send again to ${many}`;
	};
	offer();

	const tell = async () => account || update(told, await postsOf(shown.id, page.signal, tell));
	async function renew() {
		const now = await get(address, page.signal);
		const standing = (each) => JSON.stringify([each.scheduled_at, each.recipients]);
		const changed = standing(now) !== standing(shown);
		shown = now;
		if (!changed) return;
		update(top, summary(shown, found, home));
		update(tally, counts(shown));
		update(story, stories(shown, go));
		update(state, stateBadge(shown));
		update(about, details(shown));
		offer();
		await tell();
	}
	const round = async () => {
		await (waits(shown) ? renew() : tell()); // webhooks follow the result with a short delay
		return isNear(shown) ? 1 : undefined;
	};
	if (!account) page.every(2, round); // an administrator's read is logged: do it once
	const parts = () => {
		const place = h("div", null, failed ? errorText(failed) : skeleton(3));
		if (!failed)
			content(shown, found, address, page.signal)
				.catch(errorText)
				.then((node) => place.replaceChildren(node));
		return place;
	};
	if (!account) update(told, await early[1]);
	const panels = [
		["Activity", [tally, story]],
		["Content", parts],
		!account && ["Webhook", told],
		["Details", about],
	].filter(Boolean);
	return fragment(
		head(shown.subject || "(no subject)", {
			crumb: { href: list(home), title: account ? `Messages of ${account.name}` : "Messages" },
			badge: state,
			actions: account ? [] : [again, retry, reschedule, cancel],
		}),
		top,
		tabs("Message", null, panels, {
			first: panels.map(([name]) => name).find((name) => name.toLowerCase() === page.query.get("tab")),
			chosen: (name) => history.replaceState(history.state, "", query(location.pathname, { tab: name.toLowerCase() })),
		}),
	);
}
