// Previews: mail in a frame where no script runs and nothing is loaded but images that the viewer asked for, and
// templates as the server renders them.
//
// The frame's sandbox and its own policy (see pages.py) forbid all that already. What is taken out here would only be
// refused there, with a report each time.
import { h } from "./dom.js";

const DROPPED = "script, iframe, frame, object, embed, link, meta, base, applet, portal, audio, video, source, track";
const LEADING = new Set([
	"src",
	"srcset",
	"href",
	"xlink:href",
	"background",
	"poster",
	"action",
	"formaction",
	"ping",
	"data",
	"lowsrc",
	"dynsrc",
]);
const IMAGE = /^data:image\/(png|jpe?g|gif|webp|bmp)[;,]/i;

// These would act while the text is parsed, before anything can be taken out. A wbr is as empty, and does nothing.
const EARLY = /<(\/?)(?:base|link|meta)\b/gi;
// What mail programs begin with.
const BASIC = "body { margin: 12px; font: 14px/1.5 Arial, sans-serif; overflow-wrap: anywhere; }";

const REMOTE = /^\s*(?:https?:)?\/\//i;

const harmless = (style) =>
	style.replace(/@import[^;]*;?/gi, "").replace(/(?:image-set|url)\((?!\s*['"]?data:image\/)[^)]*\)/gi, "none");

/**
 * Takes out what leads elsewhere. `inline` are the images that the message brings along, by their content ids; images
 * of other servers stay only with `remote`. Gives how many of those were taken out.
 */
function clean(parsed, inline, remote) {
	let kept = 0;
	for (const each of parsed.querySelectorAll(DROPPED)) each.remove();
	for (const each of parsed.querySelectorAll("style")) each.textContent = harmless(each.textContent);
	for (const each of parsed.querySelectorAll("*")) {
		for (const { name, value } of [...each.attributes]) {
			if (name.startsWith("on")) each.removeAttribute(name);
			else if (name === "style") each.setAttribute("style", harmless(value));
			else if (LEADING.has(name) && !IMAGE.test(value)) {
				const image = each.localName === "img" && name === "src";
				if (image && remote && REMOTE.test(value)) continue;
				if (image && REMOTE.test(value)) kept += 1;
				each.removeAttribute(name);
				if (name === "href") each.setAttribute("title", value);
				if (image && inline.has(value.slice(4))) each.setAttribute("src", inline.get(value.slice(4)));
			}
		}
	}
	const basic = parsed.createElement("style");
	basic.textContent = BASIC;
	parsed.head.prepend(basic);
	return kept;
}

/**
 * A frame, and the way to put other mail into it: {frame, show(html), loadImages()}. `inline` are images by content id;
 * `held` is told how many images of other servers are not shown.
 */
export function preview(title, html = "", inline = new Map(), held = () => {}) {
	let wanted = html;
	const frame = h("iframe", {
		class: "preview",
		src: "/dashboard/preview",
		sandbox: "allow-same-origin",
		title,
		onload: fill,
	});
	function fill() {
		const page = frame.contentDocument;
		if (!page?.documentElement) return;
		const parsed = new frame.contentWindow.DOMParser().parseFromString(wanted.replace(EARLY, "<$1wbr"), "text/html");
		held(clean(parsed, inline, frame.src.endsWith("/images")));
		page.replaceChild(page.adoptNode(parsed.documentElement), page.documentElement);
		for (const image of page.images) image.addEventListener("load", fit);
		fit();
	}
	function fit() {
		const page = frame.contentDocument;
		// Of the body: the whole document is never smaller than the frame, which would only ever grow.
		frame.height = Math.min(Math.max(Math.ceil(page.body.getBoundingClientRect().height) + 32, 160), 900);
	}
	return {
		frame,
		show(other) {
			wanted = other;
			fill();
		},
		/** The same page with another policy: it may load images, and nothing else. */
		loadImages() {
			frame.src = "/dashboard/preview/images";
		},
	};
}

const PLACEHOLDER = /\{\{ *([A-Za-z_][A-Za-z0-9_.-]{0,63}) *\}\}/g;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };

/** The names in these sources, by the alphabet. */
export function variables(...sources) {
	const found = new Set();
	for (const source of sources) for (const [, name] of source.matchAll(PLACEHOLDER)) found.add(name);
	return [...found].sort();
}

export const escaped = (value) => value.replace(/[&<>"']/g, (each) => ESCAPES[each]);

/** A source with its values, each put in once; a name without a value stays as it is. */
export const filled = (source, values, write = (value) => value) =>
	source.replace(PLACEHOLDER, (whole, name) =>
		Object.hasOwn(values, name) && values[name] !== "" ? write(values[name]) : whole,
	);
