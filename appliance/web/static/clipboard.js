// Toasts and copying to the clipboard. Loaded on first use.
import { h } from "./dom.js";

export function toast(text) {
	const line = h("p", null, text);
	document.querySelector(".toasts").replaceChildren(line);
	setTimeout(() => line.remove(), 4000);
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
