// WAI-ARIA tabs: one stop for the Tab key; arrows, Home and End switch. The choice is remembered.
import { h } from "./dom.js";

let groups = 0; // keeps ids unique on a page

function remembered(key) {
	try {
		return localStorage.getItem(key);
	} catch {
		return null; // no storage
	}
}

function remember(key, name) {
	try {
		localStorage.setItem(key, name);
	} catch {
		// no storage
	}
}

/** Panels, as [name, content]; one is shown. The browser remembers the choice under `key`. */
export function tabs(label, key, panels) {
	const group = `tabs${++groups}`;
	const names = panels.map(([name]) => name);
	const buttons = names.map((name, at) =>
		h(
			"button",
			{
				type: "button",
				role: "tab",
				id: `${group}-tab${at}`,
				"aria-controls": `${group}-panel${at}`,
				onclick: () => choose(at),
			},
			name,
		),
	);
	const shown = panels.map(([, content], at) =>
		h("div", { role: "tabpanel", id: `${group}-panel${at}`, "aria-labelledby": `${group}-tab${at}` }, content),
	);

	function show(chosen) {
		buttons.forEach((each, at) => {
			each.ariaSelected = String(at === chosen);
			each.tabIndex = at === chosen ? 0 : -1;
			shown[at].hidden = at !== chosen;
		});
	}

	function choose(at) {
		show(at);
		buttons[at].focus();
		remember(key, names[at]);
	}

	function typed(event) {
		const at = buttons.indexOf(event.target);
		const last = buttons.length - 1;
		const next = {
			ArrowLeft: at === 0 ? last : at - 1,
			ArrowRight: at === last ? 0 : at + 1,
			Home: 0,
			End: last,
		}[event.key];
		if (next === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
		event.preventDefault();
		choose(next);
	}

	show(Math.max(0, names.indexOf(remembered(key))));
	return h(
		"div",
		null,
		h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: typed }, buttons),
		shown,
	);
}
