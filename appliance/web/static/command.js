// The search field, which finds messages, addresses and domains, and the keyboard shortcuts.
import { get } from "./api.js";
import { h, path, query } from "./dom.js";

const ROOT = "/dashboard";
const HITS = 5; // messages to show while typing
const PAUSE = 150; // milliseconds without a key before messages are searched

/** Where a text may lead, most likely first: [label, href]. */
export function places(text, sections) {
	const wanted = text.trim();
	if (!wanted) return [];
	const lower = wanted.toLowerCase();
	const found = [];
	const address = /<?([^\s<>]+@[^\s<>]+?)>?$/.exec(lower)?.[1];
	if (/^msg_[0-9a-f]+$/.test(lower)) found.push([`Message ${lower}`, path(`${ROOT}/messages`, lower)]);
	if (/^inb_[0-9a-f]+$/.test(lower)) found.push([`Received message ${lower}`, path(`${ROOT}/received`, lower)]);
	if (address) {
		found.push([`Messages to ${address}`, query(`${ROOT}/messages`, { recipient: address })]);
		found.push([`Messages from ${address}`, query(`${ROOT}/messages`, { from: address })]);
	} else if (/^[^\s@]+\.[^\s@.]{2,}$/.test(lower)) {
		found.push([`Messages to ${lower}`, query(`${ROOT}/messages`, { recipient: lower })]);
		found.push([`Messages from ${lower}`, query(`${ROOT}/messages`, { from: lower })]);
		found.push([`Domain ${lower}`, path(`${ROOT}/domains`, lower)]);
	}
	for (const [title, href] of sections) if (title.toLowerCase().includes(lower)) found.push([title, href]);
	const search = [`Search messages for “${wanted}”`, query(`${ROOT}/messages`, { q: wanted })];
	return [...found.slice(0, 6), search];
}

/** Messages that match a text, and the search inside addresses if none does. */
async function hits(text, signal) {
	const { emails } = await get(query("/v1/emails", { q: text, limit: HITS }), signal);
	const inside = [`Addresses that contain “${text}”`, query(`${ROOT}/messages`, { address: text })];
	if (!emails.length) return /\s/.test(text) ? [] : [inside];
	return emails.map((each) => [
		`${each.subject || "(no subject)"} · ${each.recipients[0]?.email ?? "–"}`,
		path(`${ROOT}/messages`, each.id),
	]);
}

/** Activate the field. */
export function attach(field, go) {
	const list = document.getElementById("found");
	const sections = () =>
		[...document.querySelectorAll(".rail nav li:not([hidden]) a")].map((link) => [
			link.textContent.trim(),
			link.pathname,
		]);
	let found = [];
	let at = 0;
	let asking = new AbortController();

	function close() {
		asking.abort();
		list.hidden = true;
		field.setAttribute("aria-expanded", "false");
		field.removeAttribute("aria-activedescendant");
	}
	function choose(href) {
		field.value = "";
		close();
		field.blur();
		go(href);
	}
	function draw() {
		list.replaceChildren(
			...found.map(([title, href], index) =>
				h(
					"li",
					{
						role: "option",
						id: `found-${index}`,
						"aria-selected": String(index === at),
						onmousedown: (event) => {
							event.preventDefault();
							choose(href);
						},
					},
					title,
				),
			),
		);
		list.hidden = found.length === 0;
		field.setAttribute("aria-expanded", String(!list.hidden));
		if (found.length) field.setAttribute("aria-activedescendant", `found-${at}`);
	}
	function look() {
		found = places(field.value, sections());
		at = 0;
		draw();
		asking.abort();
		asking = new AbortController();
		const { signal } = asking;
		const text = field.value.trim();
		if (text.length > 1 && !/^(msg|inb)_[0-9a-f]{32}$/.test(text))
			setTimeout(async () => {
				const more = signal.aborted ? [] : await hits(text, signal).catch(() => []); // the search itself says why
				if (signal.aborted || !more.length || document.activeElement !== field) return;
				found = [...found, ...more]; // below, so that nothing moves under the reader
				draw();
			}, PAUSE);
	}
	field.addEventListener("input", look);
	look(); // typed while this module was loading
	field.addEventListener("blur", close);
	field.addEventListener("keydown", (event) => {
		if (event.key === "Escape") {
			field.value = "";
			close();
			field.blur();
		} else if (event.key === "Enter" && found[at]) choose(found[at][1]);
		else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
			at = (at + (event.key === "ArrowDown" ? 1 : found.length - 1)) % (found.length || 1);
			draw();
		} else return;
		event.preventDefault();
	});
}

/** List the keyboard shortcuts. */
export async function showShortcuts() {
	const [{ dialog }, { facts }] = await Promise.all([import("./form.js"), import("./pieces.js")]);
	const key = (text) => h("code", null, text);
	const sections = [...document.querySelectorAll(".rail nav li:not([hidden]) a")].map((link) => [
		link.textContent.trim(),
		key(`g ${link.dataset.key}`),
	]);
	dialog("Keyboard", (close) => [
		facts([
			["Search messages, or find a page", key("/")],
			["Next and previous row", key("j"), " ", key("k")],
			["Open the row", key("Enter")],
			...sections,
		]),
		h("div", { class: "actions" }, h("button", { type: "button", onclick: close }, "Close")),
	]);
}
