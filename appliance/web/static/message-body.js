// The content of a message: HTML, text, files and headers, with downloads. Remote images load on a click.
import { file, get } from "./api.js";
import { h } from "./dom.js";
import { button, section, table } from "./pieces.js";
import { preview } from "./preview.js";
import { bytes } from "./bytes.js";
import { count } from "./time.js";

const IMAGE = /^image\/(png|jpeg|gif|webp|bmp)$/;
const INLINE = 20; // images to fetch
const INLINE_SIZE = 2e6; // bytes of each
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

/** Download a file. */
export function save(blob, name) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(blob);
	link.download = name.replace(TURNING, "_");
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const download = (label, address, name, kind = "tiny") =>
	button("Download", async () => save(await file(address), name), kind, { "aria-label": `Download ${label}` });

/** Headers, texts and files of the message at this API path; null if no longer stored. */
export const read = (message, address, signal) => (message.body_kept ? get(`${address}/body`, signal) : null);

const asData = (blob) =>
	new Promise((resolve, reject) => {
		const reader = new FileReader();
		reader.onload = () => resolve(reader.result);
		reader.onerror = () => reject(reader.error);
		reader.readAsDataURL(blob);
	});

/** Inline images that the HTML shows, by content id. */
async function inlined(address, found, signal) {
	const shown = new Map();
	for (const [number, each] of found.attachments.entries()) {
		const { content_id: id, content_type: type, size } = each;
		if (shown.size === INLINE || !id || !IMAGE.test(type) || size > INLINE_SIZE) continue;
		if (!found.html.includes(`cid:${id}`)) continue;
		const image = await file(`${address}/attachments/${number}`, signal).catch(() => null);
		if (image) shown.set(id, await asData(new Blob([image], { type })));
	}
	return shown;
}

function html(found, images) {
	const note = h("p", { class: "held row small", hidden: true });
	const shown = preview("HTML message", found.html, images, (held) => {
		note.hidden = held === 0;
		note.replaceChildren(
			`${count(held, "remote image", "remote images")} blocked. Loading reveals that you opened the message.`,
			button("Load images", () => shown.loadImages(), "tiny"),
		);
	});
	return h("div", null, note, shown.frame);
}

function files(address, found) {
	const rows = found.attachments.map((each, number) => {
		const name = each.filename || `file-${number + 1}`;
		return [
			h("bdi", null, name),
			`${each.content_type}, ${bytes(each.size)}`,
			download(name, `${address}/attachments/${number}`, name),
		];
	});
	return table(
		"Attached files",
		[{ title: "File", class: "break" }, { title: "Kind and size" }, { title: "Download" }],
		rows,
	);
}

const header = (found) =>
	table(
		"Headers",
		[{ title: "Name" }, { title: "Value", class: "break" }],
		found.headers.map((each) => [
			h("code", null, each.name),
			h("code", { class: "break" }, h("bdi", null, each.value)),
		]),
	);

/** The content section of a message page; `found` is the result of `read`. */
export async function content(message, found, address, signal) {
	if (!found) return section("Content", h("p", { class: "quiet" }, "The body is no longer stored."));
	const images = found.html === null ? new Map() : await inlined(address, found, signal);
	const views = [
		found.html !== null && ["HTML", () => html(found, images)],
		found.text !== null && ["Text", () => h("pre", { tabindex: "0" }, found.text)],
		found.attachments.length > 0 && [`Files (${found.attachments.length})`, () => files(address, found)],
		["Header", () => header(found)],
	];
	return h(
		"section",
		null,
		h(
			"div",
			{ class: "titled" },
			h("h2", null, "Content"),
			h(
				"div",
				{ class: "row" },
				button("Download .eml", async () => save(await file(`${address}/raw`), `${message.id}.eml`)),
			),
		),
		found.truncated && h("p", { class: "quiet" }, "Truncated: the message is too long to show."),
		tabs("Message content", views.filter(Boolean)),
	);
}

/** `views` are [title, make] pairs; a view is built when first shown. */
function tabs(label, views) {
	const panel = h("div", { role: "tabpanel", tabindex: "0", class: "panel" });
	const made = new Map();
	const buttons = views.map(([title, make], at) =>
		h(
			"button",
			{
				type: "button",
				role: "tab",
				onclick: () => choose(at),
				onkeydown: (event) => {
					const by = { ArrowRight: 1, ArrowLeft: views.length - 1 }[event.key];
					if (by) choose((at + by) % views.length).focus();
				},
			},
			title,
		),
	);
	function choose(at) {
		buttons.forEach((each, index) => {
			each.setAttribute("aria-selected", String(index === at));
			each.tabIndex = index === at ? 0 : -1;
		});
		if (!made.has(at)) made.set(at, views[at][1]());
		panel.setAttribute("aria-label", views[at][0]);
		panel.replaceChildren(made.get(at));
		return buttons[at];
	}
	choose(0);
	return h("div", null, h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), panel);
}
