// A menu of further actions behind one button, for what is rare or destructive.
import { h } from "./dom.js";

const ROOM = 240; // pixels below the button; with less, the menu opens upwards

/** `items` are buttons and links; those that the user may not use are null. Null without any. */
export function menu(label, items, text = "⋯") {
	const shown = items.flat().filter(Boolean);
	if (!shown.length) return null;
	for (const each of shown) {
		each.setAttribute("role", "menuitem");
		each.classList.remove("tiny");
	}
	const opener = h(
		"button",
		{ type: "button", class: text === "⋯" ? "plain tiny" : "", "aria-haspopup": "menu", "aria-label": label },
		text,
	);
	const list = h(
		"div",
		{
			class: "menu",
			role: "menu",
			popover: "auto",
			"aria-label": label,
			onbeforetoggle: ({ newState }) => newState === "open" && place(),
			ontoggle({ newState }) {
				opener.ariaExpanded = String(newState === "open");
				if (newState === "open") shown[0].focus();
			},
			onkeydown(event) {
				const by = { ArrowDown: 1, ArrowUp: shown.length - 1 }[event.key];
				if (!by) return;
				event.preventDefault();
				shown[(shown.indexOf(document.activeElement) + by) % shown.length].focus();
			},
		},
		shown,
	);
	// Closed first, so that the focus is on the opener when a dialog opens, and returns there.
	list.addEventListener("click", () => list.hidePopover(), true);
	opener.popoverTargetElement = list;

	function place() {
		const { top, bottom, right } = opener.getBoundingClientRect();
		const up = innerHeight - bottom < ROOM && top > ROOM;
		const { clientHeight, clientWidth } = document.documentElement;
		list.style.top = up ? "auto" : `${scrollY + bottom + 4}px`;
		list.style.bottom = up ? `${clientHeight - scrollY - top + 4}px` : "auto";
		list.style.right = `${Math.max(8, clientWidth - right)}px`;
	}
	return h("span", { class: "opens" }, opener, list);
}
