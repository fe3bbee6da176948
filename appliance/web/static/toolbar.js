// The bar above a list, its filter chips, and the choice of one of a few views.
import { h } from "./dom.js";

/** Search and chips on the left, the count and actions on the right; all are optional. */
export const toolbar = ({ search, chips = [], count, actions = [] }) =>
	h("div", { class: "toolbar" }, search, chips, h("span", { class: "count", role: "status" }, count ?? ""), actions);

/**
 * A chip: an active filter that `remove`, the address without it, takes away; a link to a preset (`href`, with
 * `current`); or a switch (`onclick`, with `pressed`).
 */
export function chip(text, { remove, href, current, onclick, pressed } = {}) {
	if (remove)
		return h(
			"span",
			{ class: "chip" },
			h("bdi", null, text),
			h("a", { href: remove, "aria-label": `Remove the filter ${text}` }, "×"),
		);
	if (href) return h("a", { class: "chip", href, "aria-current": current && "true" }, text);
	return h("button", { type: "button", class: "chip", "aria-pressed": String(Boolean(pressed)), onclick }, text);
}

/** Links of which one is current: [text, href, current]. */
export const segments = (label, links) =>
	h(
		"nav",
		{ class: "segments", "aria-label": label },
		links.map(([text, href, current]) => h("a", { href, "aria-current": current && "true" }, text)),
	);
