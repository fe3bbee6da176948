// WAI-ARIA tabs: one stop for the Tab key; arrows, Home and End switch.
import { h } from "./dom.js";

let groups = 0; // keeps ids unique on a page

function remembered(key) {
	try {
		return key && localStorage.getItem(key);
	} catch {
		return null; // no storage
	}
}

function remember(key, name) {
	try {
		if (key) localStorage.setItem(key, name);
	} catch {
		// no storage
	}
}

/**
 * Panels, as [name, content]; one is shown. A function is called for its content when first shown. The browser
 * remembers the choice under `key`, if given; `first` is the name to start with; `chosen` gets each choice.
 */
export function tabs(label, key, panels, { first, chosen = () => {} } = {}) {
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
		h(
			"div",
			{ role: "tabpanel", class: "panel", id: `${group}-panel${at}`, "aria-labelledby": `${group}-tab${at}` },
			typeof content !== "function" && content,
		),
	);

	function show(current) {
		buttons.forEach((each, at) => {
			each.ariaSelected = String(at === current);
			each.tabIndex = at === current ? 0 : -1;
			shown[at].hidden = at !== current;
		});
		const [, content] = panels[current];
		if (typeof content === "function" && !shown[current].hasChildNodes()) shown[current].append(content());
	}

	function choose(at) {
		show(at);
		buttons[at].focus();
		remember(key, names[at]);
		chosen(names[at]);
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

	show(Math.max(0, names.indexOf(first ?? remembered(key))));
	return h(
		"div",
		null,
		h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: typed }, buttons),
		shown,
	);
}
