// Previews: mail in a frame where no script runs and nothing loads but images that the viewer asked for, and
// templates rendered like on the server.
//
// The frame's sandbox and policy (see pages.py) already forbid these. Removing them here avoids a
// violation report for each.
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

// These act while the text is parsed, before anything can be removed. A wbr is as empty and harmless.
const EARLY = /<(\/?)(?:base|link|meta)\b/gi;
// Default style of mail programs.
const BASIC = "body { margin: 12px; font: 14px/1.5 Arial, sans-serif; overflow-wrap: anywhere; }";

const LINKS = 200; // reported
const REMOTE = /^\s*(?:https?:)?\/\//i;

const harmless = (style) =>
	style.replace(/@import[^;]*;?/gi, "").replace(/(?:image-set|url)\((?!\s*['"]?data:image\/)[^)]*\)/gi, "none");

/**
 * Remove references to other servers. `inline` are the message's own images by content id; remote images stay only
 * with `remote`. Returns the number of removed images.
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

/** The links of a parsed page, as {text, target}. */
const targets = (parsed) =>
	[...parsed.querySelectorAll("a[href]")].slice(0, LINKS).map((each) => ({
		text: each.textContent.replace(/\s+/g, " ").trim(),
		target: each.getAttribute("href"),
	}));

/**
 * A frame and its controls: {frame, show(html), loadImages()}. `inline` are images by content id; `held` gets the
 * number of blocked remote images, and the links.
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
		if (!page?.documentElement || page.URL === "about:blank") return; // before its own policy is loaded
		const parsed = new frame.contentWindow.DOMParser().parseFromString(wanted.replace(EARLY, "<$1wbr"), "text/html");
		const links = targets(parsed);
		held(clean(parsed, inline, frame.src.endsWith("/images")), links);
		page.replaceChild(page.adoptNode(parsed.documentElement), page.documentElement);
		for (const image of page.images) image.addEventListener("load", fit);
		fit();
	}
	function fit() {
		const page = frame.contentDocument;
		// Measure the body: the document is never smaller than the frame, which would only grow.
		frame.height = Math.min(Math.max(Math.ceil(page.body.getBoundingClientRect().height) + 32, 160), 900);
	}
	return {
		frame,
		show(other) {
			wanted = other;
			fill();
		},
		/** The same page with a policy that also allows images. */
		loadImages() {
			frame.src = "/dashboard/preview/images";
		},
	};
}

const PLACEHOLDER = /\{\{ *([A-Za-z_][A-Za-z0-9_.-]{0,63}) *\}\}/g;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };

/** The placeholder names of these sources, sorted. */
export function variables(...sources) {
	const found = new Set();
	for (const source of sources) for (const [, name] of source.matchAll(PLACEHOLDER)) found.add(name);
	return [...found].sort();
}

export const escaped = (value) => value.replace(/[&<>"']/g, (each) => ESCAPES[each]);

/** A source with its values inserted once; a placeholder without a value stays. */
export const filled = (source, values, write = (value) => value) =>
	source.replace(PLACEHOLDER, (whole, name) =>
		Object.hasOwn(values, name) && values[name] !== "" ? write(values[name]) : whole,
	);
