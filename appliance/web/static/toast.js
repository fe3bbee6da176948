// Toasts, with undo, and copying to the clipboard. Loaded on first use.
import { h } from "./dom.js";

const SHOWN = 4000; // milliseconds
const SHOWN_WITH_UNDO = 10_000;

/** Show a text for a while; `undo` reverses what it reports. It stays while the pointer or the focus is on it. */
export function toast(text, undo) {
	const place = document.querySelector(".toasts");
	const line = h(
		"p",
		{ class: "toast" },
		h("span", null, text),
		undo &&
			h(
				"button",
				{
					type: "button",
					class: "tiny",
					onclick: async () => {
						line.remove();
						await undo().catch((error) => toast(error.message));
					},
				},
				"Undo",
			),
	);
	for (const old of place.querySelectorAll(".toast")) old.remove();
	place.append(line);
	const end = () => (line.matches(":hover, :focus-within") ? setTimeout(end, SHOWN) : line.remove());
	setTimeout(end, undo ? SHOWN_WITH_UNDO : SHOWN);
}

/** Without HTTPS, browsers offer only the old API. */
export async function copy(text) {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		const area = h("textarea", { value: text, "aria-hidden": "true" });
		(document.querySelector("dialog[open]") ?? document.body).append(area);
		area.select();
		document.execCommand("copy");
		area.remove();
	}
	toast("Copied");
}
