// Puts a text into the clipboard; without HTTPS browsers offer only the old way. Loaded when something is copied.
import { h, toast } from "./dom.js";

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
