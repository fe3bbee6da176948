// Puts texts into the clipboard; loaded at the first click on a copy button.
import { h, toast } from "./dom.js";

/** Without HTTPS browsers offer only the old way. */
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
