// Parts of the webhook page: statistics, test events, and replays of many deliveries.
import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { h, path, query, s, style, toast } from "./dom.js";
import { dialog, form } from "./form.js";
import { button } from "./pieces.js";
import { count, hour, number, percent, span } from "./time.js";

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

// ---- statistics

const tile = (name, value, note) =>
	h("div", { class: "tile" }, h("dt", null, name), h("dd", null, value), h("dd", { class: "note" }, note));

/** The mean duration of each hour as a line; hours without attempts are left out. */
function durations(hours) {
	const means = hours.map((each) => each.mean_ms);
	const top = Math.max(1, ...means);
	const points = means.flatMap((mean, at) =>
		mean === null ? [] : [`${((at + 0.5) / means.length) * 100},${23 - (mean / top) * 22}`],
	);
	return (
		points.length > 1 &&
		s(
			"svg",
			{
				class: "trace",
				viewBox: "0 0 100 24",
				preserveAspectRatio: "none",
				role: "img",
				"aria-label": `Mean duration by hour, at most ${span(top)}`,
			},
			s("polyline", { points: points.join(" ") }),
		)
	);
}

function numbers({ totals, hours }) {
	if (!totals.attempts) return h("p", { class: "card quiet" }, "No attempts in this period.");
	const errors = totals.attempts - totals.success;
	const kinds = OUTCOMES.filter(([kind]) => totals[kind]);
	const words = kinds.slice(totals.success ? 1 : 0).map(([kind, name]) => `${name}: ${number(totals[kind])}`);
	return [
		h(
			"dl",
			{ class: "tiles" },
			tile("Success rate", percent(totals.success_rate), `${count(totals.attempts, "attempt", "attempts")}`),
			tile("Mean duration", [span(totals.mean_ms), " ", durations(hours)], `slowest ${span(totals.slowest_ms)}`),
			tile("Errors", number(errors), words.join(", ") || "none"),
		),
		h("div", { class: "card spaced" }, chart("Attempts per hour", hours, kinds, hour)),
	];
}

/** Success rate, durations and errors of the last day or week. */
export async function statistics(page) {
	await style("overview");
	const place = h("div", null);
	let hours = SPANS[0][0];
	const draw = async () => {
		const read = await get(query("/v1/webhook/statistics", { hours }), page.signal);
		place.replaceChildren(...[numbers(read)].flat());
	};
	const choices = SPANS.map(([value, text]) =>
		button(
			text,
			async (made) => {
				hours = value;
				for (const each of choices) each.ariaPressed = String(each === made);
				await draw();
			},
			"tiny",
			{ "aria-pressed": String(value === hours) },
		),
	);
	await draw();
	// The chart is rebuilt, so not while it is in use.
	page.every(15, async () => place.querySelector("svg:hover, svg:focus-within, details[open]") || (await draw()));
	return h(
		"section",
		null,
		h(
			"div",
			{ class: "titled" },
			h("h2", null, "Attempts"),
			h("div", { class: "row", role: "group", "aria-label": "Period" }, choices),
		),
		place,
	);
}

// ---- test events

/** Ask for an event type, and post an example of it. */
export function sendTest(types, draw) {
	dialog("Send a test event", (close) =>
		form({
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
			extra: button("Cancel", () => close()),
			async send({ type }) {
				await (type === PING ? post("/v1/webhook/ping") : post("/v1/webhook/test", { type }));
				close();
				toast(`Test event ${type} is being sent`);
				await draw();
			},
		}),
	);
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
