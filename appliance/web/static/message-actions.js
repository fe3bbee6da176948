// Actions on selected messages: try now, send again, reschedule, cancel; and the export of a filtered list.
import { file, post } from "./api.js";
import { h, path, query, toast } from "./dom.js";
import { confirmed } from "./form.js";
import { save } from "./message-body.js";
import { button } from "./pieces.js";
import { askTime, move } from "./schedule.js";
import { count, hour, number } from "./time.js";

const AT_ONCE = 4; // requests

const messages = (many) => count(many, "message", "messages");
const work = (id, name, ...more) => post(`${path("/v1/emails", id)}/${name}`, ...more);
/**
 * `ask` returns the further arguments of `send`, or null if the user declines; without `did` a response means that the
 * action applied. `undo` reverses it for one row.
 */
const ACTIONS = [
	{
		label: "Try now",
		needs: "retryEmail",
		send: (id) => work(id, "retry"),
		did: (answer) => answer.retried > 0,
		done: (many) => `Trying ${messages(many)} now`,
		skipped: "had nothing to retry, or were tried in the last minute",
	},
	{
		label: "Send again",
		needs: "resendEmail",
		send: (id, key) => work(id, "resend", {}, { "Idempotency-Key": `${key} ${id}` }),
		done: (many) => `Sent ${messages(many)} again`,
		skipped: "had no undelivered recipient",
		ask: async (many) =>
			(await confirmed(
				`Send ${messages(many)} again?`,
				"Each is sent as a new message to its recipients that bounced or failed. Each recipient costs one credit.",
				"Send again",
				"Keep",
				"primary",
			)) && `${Date.now()}-${Math.random()}`,
	},
	{
		label: "Reschedule",
		needs: "cancelEmail",
		only: ".scheduled",
		send: move,
		done: (many, at) => `${messages(many)} ${many === 1 ? "goes" : "go"} out ${hour(at)}`,
		skipped: "were not scheduled",
		ask: (many) => askTime(`Reschedule ${messages(many)}`),
		undo: (row) => {
			const before = row.querySelector(".state time")?.dateTime;
			return () => before && move(row.dataset.id, before);
		},
	},
	{
		label: "Cancel messages",
		needs: "cancelEmail",
		kind: "danger",
		send: (id) => work(id, "cancel"),
		done: (many) => `Cancelled ${messages(many)}`,
		skipped: "had no queued or scheduled recipient",
		ask: (many) =>
			confirmed(
				`Cancel ${messages(many)}?`,
				"All queued and scheduled recipients are cancelled. Their credits are returned. " +
					"A delivery in progress may still complete.",
				"Cancel messages",
				"Keep messages",
			),
	},
];

/** One request, repeated when the server asks to wait. Returns null if the action does not apply to the message. */
async function patiently(send) {
	for (;;) {
		try {
			return await send();
		} catch (error) {
			if (error.status === 409 || error.status === 404) return null;
			if (error.status !== 429) throw error;
			await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 1) * 1000));
		}
	}
}

/** Call `send` for each item, a few at a time. Returns the items for which the response passes `did`. */
async function forAll(items, send, did = Boolean, tell = () => {}) {
	const left = [...items];
	const applied = [];
	const worker = async () => {
		for (let item = left.shift(); item; item = left.shift()) {
			const current = item;
			const answer = await patiently(() => send(current));
			if (answer && did(answer)) applied.push(current);
			tell(items.length - left.length);
		}
	};
	await Promise.all(Array.from({ length: AT_ONCE }, worker));
	return applied;
}

/** The bar with actions on the selected rows; shown while there are any. `after` is called when one is done. */
export function selectionBar(body, after) {
	const boxes = (which = "") => [...body.querySelectorAll(`tr input[type=checkbox]${which}`)];
	const selected = () => boxes(":checked").map((box) => box.closest("tr"));
	const told = h("span", { role: "status" });
	const check = (chosen, value) => {
		for (const box of chosen) box.checked = value;
		show();
	};
	const act = (action) =>
		button(
			action.label,
			async () => {
				const chosen = selected();
				const how = await action.ask?.(chosen.length);
				if (action.ask && !how) return;
				const undo = action.undo && new Map(chosen.map((row) => [row, action.undo(row)]));
				const tell = (done) => (told.textContent = `${number(done)} of ${number(chosen.length)}…`);
				let applied;
				try {
					applied = await forAll(chosen, (row) => action.send(row.dataset.id, how), action.did, tell);
				} finally {
					show();
				}
				const did = applied.length;
				const skipped = chosen.length - did;
				toast(
					[did && action.done(did, how), skipped && `${messages(skipped)} ${action.skipped}`]
						.filter(Boolean)
						.join("; "),
					undo &&
						did &&
						(async () => {
							await forAll(applied, (row) => undo.get(row)());
							await after();
						}),
				);
				check(boxes(":checked"), false);
				await after();
			},
			action.kind,
			{ needs: action.needs, "data-only": action.only },
		);
	const bar = h(
		"div",
		{ class: "row bulk", role: "region", "aria-label": "Selected messages", hidden: true },
		told,
		ACTIONS.map(act),
		button("Select all shown", () => check(boxes(), true), "plain"),
		button("Clear selection", () => check(boxes(), false), "plain"),
	);
	function show() {
		const many = selected().length;
		bar.hidden = !many;
		for (const each of bar.querySelectorAll("[data-only]"))
			each.hidden = !selected().some((row) => row.querySelector(each.dataset.only));
		told.textContent = `${number(many)} selected`;
	}
	body.addEventListener("change", show);
	show();
	return bar;
}

/** Download the filtered messages as CSV, one line per recipient. */
export async function exportFile(filters) {
	save(await file(query("/v1/emails", { ...filters, format: "csv" })), "messages.csv");
	toast("Messages exported");
}
