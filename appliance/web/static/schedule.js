// Scheduled messages: the field for their time, in the viewer's time zone, and the dialog that moves them.
import { patch } from "./api.js";
import { h, path, toast } from "./dom.js";
import { dialog, form } from "./form.js";
import { hour, zone } from "./time.js";

const AHEAD = 30 * 24 * 3_600_000; // milliseconds, by the API

/** A moment as a field of the browser shows it: local, to the minute. */
const local = (moment) => new Date(moment - new Date(moment).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);

/** The field `scheduled_at` of a form. Its value, as `utc` reads it, is a time for the API. */
export const timeField = (label, more) => ({
	name: "scheduled_at",
	label,
	type: "datetime-local",
	min: local(Date.now()),
	max: local(Date.now() + AHEAD),
	...more,
	value: more.value && local(Date.parse(more.value)),
	hint: `${more.hint ?? ""}In your time zone: ${zone()}.`,
});
export const utc = (text) => new Date(text).toISOString();

export const move = (id, at) => patch(path("/emails", id), { scheduled_at: at });

/** Ask for another time. Resolves to it, or to null. */
export const askTime = (title, value) =>
	new Promise((resolve) => {
		let at = null;
		dialog(title, (close) =>
			form({
				fields: [timeField("Send at", { value, required: true, autofocus: true })],
				submit: "Reschedule",
				extra: [h("button", { type: "button", onclick: close }, "Keep")],
				async send({ scheduled_at: text }) {
					at = utc(text);
					close();
				},
			}),
		);
		document.querySelector("dialog[open]").addEventListener("close", () => resolve(at));
	});

/** Ask for another time of one message, and move it. `after` is called then, and after an undo. */
export async function reschedule(message, after) {
	const at = await askTime("Reschedule this message", message.scheduled_at);
	if (!at) return;
	const to = async (time) => {
		await move(message.id, time);
		await after();
	};
	await to(at);
	toast(`Goes out ${hour(at)}`, () => to(message.scheduled_at));
}
