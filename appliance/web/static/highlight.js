// Colours the source of a template: a layer over the textarea repeats its text in spans.
import { h } from "./dom.js";

const MOST = 50_000; // characters; longer sources stay plain, because every key would colour them again
const PLACEHOLDER = "\\{\\{ *[A-Za-z_][A-Za-z0-9_.-]{0,63} *\\}\\}";
const KINDS = {
	html: [
		["comment", "<!--[^]*?(?:-->|$)"],
		["placeholder", PLACEHOLDER],
		["tag", "</?[A-Za-z][A-Za-z0-9-]*|/?>"],
		["string", "(?<==\\s*)(?:\"[^\"]*\"|'[^']*')"],
		["attribute", "(?<=\\s)[A-Za-z-]+(?==)"],
		["entity", "&(?:[A-Za-z][A-Za-z0-9]*|#[0-9]+|#x[0-9A-Fa-f]+);"],
	],
	text: [["placeholder", PLACEHOLDER]],
};
const PATTERNS = Object.fromEntries(
	Object.entries(KINDS).map(([language, kinds]) => [
		language,
		new RegExp(kinds.map(([kind, pattern]) => `(?<${kind}>${pattern})`).join("|"), "g"),
	]),
);
const INSIDE = new RegExp(PLACEHOLDER, "g");

/** The source in order, as [kind, text]; plain text has the kind "". Joined, the texts are the source. */
export function tokens(source, language) {
	const read = [];
	let end = 0;
	const plain = (to) => to > end && read.push(["", source.slice(end, to)]);
	for (const match of source.matchAll(PATTERNS[language])) {
		plain(match.index);
		const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
		read.push(...(kind === "string" ? withPlaceholders(match[0]) : [[kind, match[0]]]));
		end = match.index + match[0].length;
	}
	plain(source.length);
	return read;
}

/** A quoted value, with the placeholders in it. */
function withPlaceholders(text) {
	const read = [];
	let end = 0;
	for (const match of text.matchAll(INSIDE)) {
		read.push(["string", text.slice(end, match.index)], ["placeholder", match[0]]);
		end = match.index + match[0].length;
	}
	return [...read, ["string", text.slice(end)]].filter(([, part]) => part);
}

function coloured([kind, text]) {
	const made = document.createElement("span");
	if (kind) made.className = `token-${kind}`;
	made.textContent = text; // exactly the text: the layer must match the textarea
	return made;
}

/** Colour a textarea while it is edited. */
export function highlight(area, language) {
	const layer = h("pre", { class: "layer", "aria-hidden": "true" });
	const place = h("div", { class: "source" });
	area.replaceWith(place);
	place.append(area, layer);
	const fit = () => {
		layer.style.width = `${area.clientWidth}px`; // without its scroll bar
		layer.style.height = `${area.clientHeight}px`;
		layer.scrollTop = area.scrollTop;
	};
	const draw = () => {
		const source = area.value;
		// A last line break has no height without something after it.
		layer.replaceChildren(...(source.length > MOST ? [] : tokens(`${source}\n`, language).map(coloured)));
		fit();
	};
	area.addEventListener("input", draw);
	area.addEventListener("scroll", fit);
	new ResizeObserver(fit).observe(area);
	draw();
}
