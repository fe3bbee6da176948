// Builds elements and loads stylesheets. Text is always inserted as text; no function here takes markup.

const SVG = "http://www.w3.org/2000/svg";

// Characters that reverse the rest of their line. Each is shown by its number instead.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;
const visible = (character) => `[U+${character.charCodeAt(0).toString(16).toUpperCase()}]`;

function fill(element, properties, children) {
	for (const [name, value] of Object.entries(properties ?? {})) {
		if (value === undefined || value === null || value === false || name === "needs") continue;
		if (name.startsWith("on")) {
			element.addEventListener(name.slice(2), value);
			element.listens = true; // for live.js
		} else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
		else if (name === "href" && !/^[/#]/.test(value)) throw new Error(`not a dashboard page: ${value}`);
		else element.setAttribute(name, value === true ? "" : value);
	}
	const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
	element.append(...shown.map((child) => (typeof child === "string" ? child.replace(TURNING, visible) : child)));
	return element;
}

let refused = [];

/** Set the operations that the user may not call. */
export const refuse = (operations = []) => (refused = operations);

export const may = (operation) => !refused.includes(operation);

/** An element: h("p", {class: "quiet"}, "text", h("b", null, "more")); null if it `needs` a forbidden operation. */
export const h = (tag, properties, ...children) =>
	may(properties?.needs) ? fill(document.createElement(tag), properties, children) : null;

/** The same for SVG. */
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Several nodes as one fragment. */
export const fragment = (...children) => fill(document.createDocumentFragment(), null, children);

/** A path with encoded parts: path("/dashboard/messages", id). */
export const path = (base, ...parts) => [base, ...parts.map(encodeURIComponent)].join("/");

/** A path with a query; empty values are omitted. */
export function query(base, values) {
	const given = new URLSearchParams(
		Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== ""),
	);
	const text = given.toString();
	return text ? `${base}?${text}` : base;
}

/** Show a toast, also to screen readers; `undo` reverses what it reports. */
export const toast = async (text, undo) => (await import("./toast.js")).toast(text, undo);

/** Copy a text to the clipboard. */
export const copy = async (text) => (await import("./toast.js")).copy(text);
