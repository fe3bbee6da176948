// Parts of the webhook page: statistics, test events, and replays of many deliveries.
import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { fragment, h, path, query, toast } from "./dom.js";
import { dialog, form, formDialog } from "./form.js";
import { button } from "./pieces.js";
import { tile, tiles } from "./tile.js";
import { count, hour, number, percent, span } from "./time.js";
import { segments } from "./toolbar.js";

const PING = "webhook.test";
const PERIODS = { 1: "the last hour", 24: "the last day", 168: "the last 7 days" };
const SPANS = [
	[24, "24 hours"],
	[168, "7 days"],
];
const OUTCOMES = [
	["success", "Delivered (2xx)", "delivered"],
	["redirect", "Redirects (3xx)", "suppressed"],
	["client_error", "Client errors (4xx)", "deferred"],
	["server_error", "Server errors (5xx)", "bounced"],
	["no_response", "No response", "failed"],
];
const DURATIONS = [
	["mean_ms", "Mean", "queued"],
	["slowest_ms", "Slowest", "deferred"],
];

// ---- statistics

function numbers({ totals, hours }) {
	if (!totals.attempts) return h("p", { class: "card quiet" }, "No attempts in this period.");
	const kinds = OUTCOMES.filter(([kind]) => totals[kind]);
	const errors = kinds.filter(([kind]) => kind !== "success").map(([kind, name]) => `${name}: ${number(totals[kind])}`);
	return fragment(
		tiles(
			tile("Success rate", percent(totals.success_rate), { notes: [count(totals.attempts, "attempt", "attempts")] }),
			tile("Mean duration", span(totals.mean_ms), { notes: [`slowest: ${span(totals.slowest_ms)}`] }),
			tile("Errors", number(totals.attempts - totals.success), { notes: errors }),
		),
		h("div", { class: "card" }, chart("Attempts per hour", hours, kinds, hour)),
		h(
			"div",
			{ class: "card" },
			chart("Duration per hour", hours, DURATIONS, hour, null, null, null, { lines: true, format: span }),
		),
	);
}

/** Success rate, durations and errors of the last day or week; the period is part of the URL. */
export async function statistics(page) {
	const hours = page.query.get("hours") === "168" ? 168 : 24;
	const place = h("div", { class: "stack" });
	const draw = async () =>
		place.replaceChildren(numbers(await get(query("/v1/webhook/statistics", { hours }), page.signal)));
	await draw();
	// The chart is rebuilt, so not while it is in use.
	page.every(15, async () => place.querySelector("svg:hover, svg:focus-within, details[open]") || (await draw()));
	const links = SPANS.map(([value, text]) => [text, query("/dashboard/webhook", { hours: value }), value === hours]);
	return h("section", null, h("div", { class: "titled" }, h("h2", null, "Attempts"), segments("Period", links)), place);
}

// ---- test events

/** Ask for an event type, and post an example of it. */
export function sendTest(types, draw) {
	formDialog("Send a test event", {
		fields: [
			{
				name: "type",
				label: "Event type of the test",
				type: "select",
				value: PING,
				options: [PING, ...types].map((each) => [each, each]),
				hint: "Posts an example with “test”: true, signed like every event. It is about no real message.",
				autofocus: true,
			},
		],
		submit: "Send test event",
		send: ({ type }) => (type === PING ? post("/v1/webhook/ping") : post("/v1/webhook/test", { type })),
		async done(_, { type }) {
			toast(`Test event ${type} is being sent`);
			await draw();
		},
	});
}

// ---- replays

/** Replay one delivery, and wait if rate limited. */
async function again(each) {
	for (;;) {
		try {
			return await post(`${path("/v1/webhook/deliveries", each.id)}/replay`);
		} catch (error) {
			if (error.status !== 429 && error.status !== 503) throw error;
			await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 1) * 1000));
		}
	}
}

/** Replay deliveries, oldest first and each event once; a failed replay is listed twice. Returns their number. */
export async function replay(deliveries, progress, isStopped = () => false) {
	const events = [...new Map(deliveries.map((each) => [each.event_id, each])).values()].reverse();
	for (const [at, each] of events.entries()) {
		if (isStopped()) return at;
		progress(`Replaying ${number(at + 1)} of ${number(events.length)}…`);
		await again(each);
	}
	return events.length;
}

export const replayed = (number) => `${count(number, "delivery", "deliveries")} replayed.`;

/** All deliveries with a status since a time. */
async function since(page, status, start, progress, isStopped) {
	const found = [];
	for (let before; !isStopped(); ) {
		const part = await get(query("/v1/webhook/deliveries", { status, limit: 100, before }), page.signal);
		found.push(...part.deliveries.filter((each) => each.created_at >= start));
		progress(`${number(found.length)} found…`);
		before = part.next;
		if (!before || part.deliveries.some((each) => each.created_at < start)) break;
	}
	return found;
}

/** Replay all deliveries that failed in a period, and those still being retried if chosen. */
export function replayPeriod(page, draw) {
	dialog("Replay failed deliveries", (close) => {
		const told = h("p", { role: "status", class: "quiet" });
		const progress = (text) => (told.textContent = text);
		let stopped = false;
		const isStopped = () => stopped;
		const made = form({
			fields: [
				{ name: "hours", label: "Failed in", type: "select", value: "24", options: Object.entries(PERIODS) },
				{
					name: "retrying",
					label: "Also deliveries that are being retried",
					type: "checkbox",
					hint: "They may arrive twice, with the same event id.",
				},
			],
			submit: "Replay deliveries",
			async send({ hours, retrying: takesRetrying }) {
				const start = new Date(Date.now() - hours * 3_600_000).toISOString();
				const failed = await since(page, "failed", start, progress, isStopped);
				const pending = await since(page, "pending", start, progress, isStopped);
				const retrying = pending.filter((each) => each.attempt);
				const chosen = takesRetrying ? [...failed, ...retrying] : failed;
				chosen.sort((one, other) => (one.id < other.id ? 1 : -1)); // newest first
				const done = await replay(chosen, progress, isStopped);
				if (stopped) return;
				const left = retrying.length && !takesRetrying;
				progress(
					replayed(done) +
						(left
							? ` ${count(retrying.length, "delivery is", "deliveries are")} still being retried: not replayed.`
							: ""),
				);
				await draw();
			},
			extra: button("Close", () => {
				stopped = true;
				close();
			}),
		});
		return [h("p", { class: "quiet" }, "Each event is posted again with the same id and a new signature."), made, told];
	});
}
