// Actions on selected messages: try now, send again, cancel; and the export of a filtered list.
import { file, post } from "./api.js";
import { h, path, query, toast } from "./dom.js";
import { confirmed } from "./form.js";
import { save } from "./message-body.js";
import { button } from "./pieces.js";
import { count, number } from "./time.js";

const AT_ONCE = 4; // requests

const messages = (many) => count(many, "message", "messages");
const ACTIONS = [
	{
		label: "Try now",
		needs: "retryEmail",
		work: "retry",
		did: (answer) => answer.retried > 0,
		done: (many) => `Trying ${messages(many)} now`,
		skipped: "had nothing to retry, or were tried in the last minute",
	},
	{
		label: "Send again",
		needs: "resendEmail",
		work: "resend",
		body: {},
		did: () => true,
		done: (many) => `Sent ${messages(many)} again`,
		skipped: "had no undelivered recipient",
		question: (many) => [
			`Send ${messages(many)} again?`,
			"Each is sent as a new message to its recipients that bounced or failed. Each recipient costs one credit.",
			"Send again",
			"Keep",
			"primary",
		],
	},
	{
		label: "Cancel messages",
		needs: "cancelEmail",
		work: "cancel",
		kind: "danger",
		did: () => true,
		done: (many) => `Cancelled ${messages(many)}`,
		skipped: "had no queued recipient",
		question: (many) => [
			`Cancel ${messages(many)}?`,
			"All queued recipients are cancelled. Their credits are returned. A delivery in progress may still complete.",
			"Cancel messages",
			"Keep messages",
		],
	},
];

/** One request, repeated when the server asks to wait. Returns null if the action does not apply to the message. */
async function ask(id, { work, body }) {
	const key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
	for (;;) {
		try {
			return await post(`${path("/v1/emails", id)}/${work}`, body, body && { "Idempotency-Key": key });
		} catch (error) {
			if (error.status === 409 || error.status === 404) return null;
			if (error.status !== 429) throw error;
			await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 1) * 1000));
		}
	}
}

/** Do it for all, a few at a time. Returns how many it applied to. */
async function forAll(ids, action, tell) {
	const left = [...ids];
	let did = 0;
	const worker = async () => {
		for (let id = left.shift(); id; id = left.shift()) {
			const answer = await ask(id, action);
			if (answer && action.did(answer)) did += 1;
			tell(ids.length - left.length);
		}
	};
	await Promise.all(Array.from({ length: AT_ONCE }, worker));
	return did;
}

/** The bar with actions on the selected rows; shown while there are any. `after` is called when one is done. */
export function selectionBar(body, after) {
	const boxes = (which = "") => [...body.querySelectorAll(`tr input[type=checkbox]${which}`)];
	const ids = () => boxes(":checked").map((box) => box.closest("tr").dataset.id);
	const told = h("span", { role: "status" });
	const check = (chosen, value) => {
		for (const box of chosen) box.checked = value;
		show();
	};
	const act = (action) =>
		button(
			action.label,
			async () => {
				const chosen = ids();
				if (action.question && !(await confirmed(...action.question(chosen.length)))) return;
				const tell = (done) => (told.textContent = `${number(done)} of ${number(chosen.length)}…`);
				let did;
				try {
					did = await forAll(chosen, action, tell);
				} finally {
					show();
				}
				const skipped = chosen.length - did;
				toast(
					[did && action.done(did), skipped && `${messages(skipped)} ${action.skipped}`].filter(Boolean).join("; "),
				);
				check(boxes(":checked"), false);
				await after();
			},
			action.kind,
			{ needs: action.needs },
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
		const many = ids().length;
		bar.hidden = !many;
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
