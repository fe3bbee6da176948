// Views of a message's content besides those of message-body.js: the HTML in other widths and colours, its links,
// and the source.
import { file } from "./api.js";
import { h } from "./dom.js";
import { button, copyButton, errorText, table } from "./pieces.js";

const SOURCE = 1e6; // characters to show

/** A button that opens a link of a message, which does not learn where it was opened. */
export const open = (target) =>
	/^https?:/i.test(target) &&
	button("Open", () => window.open(target, "_blank", "noopener,noreferrer"), "tiny", {
		"aria-label": `Open ${target}`,
	});

/** The frame of the HTML with switches for width and colours. */
export function framed(frame) {
	const paint = () => {
		// For mail without own colours; a mail's `prefers-color-scheme` follows the frame in most browsers.
		const page = frame.contentDocument?.documentElement;
		if (page) page.style.colorScheme = frame.classList.contains("dark") ? "dark" : "light";
	};
	const choice = (label, kind, on) =>
		h(
			"button",
			{
				type: "button",
				class: "tiny",
				"aria-pressed": String(!on),
				onclick: ({ target }) => {
					frame.classList.toggle(kind, on);
					for (const each of target.parentElement.children) each.ariaPressed = String(each === target);
					paint();
				},
			},
			label,
		);
	frame.addEventListener("load", paint);
	return h(
		"div",
		{ class: "framed" },
		h(
			"div",
			{ class: "row" },
			h(
				"div",
				{ role: "group", "aria-label": "Width" },
				choice("Desktop", "phone", false),
				choice("Phone", "phone", true),
			),
			h(
				"div",
				{ role: "group", "aria-label": "Colours" },
				choice("Light", "dark", false),
				choice("Dark", "dark", true),
			),
		),
		frame,
	);
}

/** The links of the HTML, as {text, target}. */
export const links = (found) =>
	found.length === 0
		? h("p", { class: "quiet" }, "The HTML has no links.")
		: table(
				"Links",
				[{ title: "Text" }, { title: "Target", class: "break" }, { title: "" }],
				found.map((each) => [
					h("bdi", null, each.text || "(no text)"),
					h("code", { class: "break" }, each.target),
					[open(each.target), " ", copyButton(each.target, "link")],
				]),
			);

/** A panel that shows what `load` returns. */
export function later(load) {
	const place = h("div");
	load()
		.catch(errorText)
		.then((node) => place.replaceChildren(node));
	return place;
}

/** The source of the message at this API path. */
export const source = (address, signal) =>
	later(async () => {
		const text = await (await file(`${address}/raw`, signal)).text();
		return h("pre", { tabindex: "0" }, text.length > SOURCE ? `${text.slice(0, SOURCE)}…` : text);
	});
