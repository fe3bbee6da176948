// The content of a message: HTML, text, files and headers, with downloads. Remote images load on a click.
import { file, get } from "./api.js";
import { copy, h } from "./dom.js";
import { button, table } from "./pieces.js";
import { preview } from "./preview.js";
import { tabs } from "./tabs.js";
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
export const read = (address, signal) =>
	get(`${address}/body`, signal).catch((error) => {
		if (error.status !== 404) throw error;
		return null;
	});

const asData = (blob) =>
	new Promise((resolve, reject) => {
		const reader = new FileReader();
		reader.onload = () => resolve(reader.result);
		reader.onerror = () => reject(reader.error);
		reader.readAsDataURL(blob);
	});

/** Inline images that the HTML shows, by content id. */
async function inlined(found, fileAt, signal) {
	const shown = new Map();
	for (const [number, each] of found.attachments.entries()) {
		const { content_id: id, content_type: type, size } = each;
		if (shown.size === INLINE || !id || !IMAGE.test(type) || size > INLINE_SIZE) continue;
		if (!found.html.includes(`cid:${id}`)) continue;
		const image = await file(fileAt(number), signal).catch(() => null);
		if (image) shown.set(id, await asData(new Blob([image], { type })));
	}
	return shown;
}

function html(found, images, framed, linked) {
	const note = h("p", { class: "held row small", hidden: true });
	const shown = preview("HTML message", found.html, images, (held, links) => {
		linked(links);
		note.hidden = held === 0;
		note.replaceChildren(
			`${count(held, "remote image", "remote images")} blocked. Loading reveals that you opened the message.`,
			button("Load images", () => shown.loadImages(), "tiny"),
		);
	});
	return h("div", null, note, framed(shown.frame));
}

function files(found, fileAt, linkTo) {
	const rows = found.attachments.map((each, number) => {
		const name = each.filename || `file-${number + 1}`;
		return [
			h("bdi", null, name),
			`${each.content_type}, ${bytes(each.size)}`,
			[
				download(name, fileAt(number), name),
				linkTo && [
					" ",
					button("Copy link", async () => copy(await linkTo(number)), "tiny", {
						"aria-label": `Copy link to ${name}`,
					}),
				],
			],
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

/**
 * The content of a message; `found` is the result of `read`. `framed` gets the frame of the HTML and returns what to
 * show; `more` are further tabs; `linked` gets the links of the HTML. `fileAt` is the API path of a file by its index;
 * `linkTo` returns a link to it that needs no login.
 */
export async function content(
	message,
	found,
	address,
	signal,
	{
		framed = (frame) => frame,
		more = [],
		linked = () => {},
		fileAt = (index) => `${address}/attachments/${index}`,
		linkTo,
	} = {},
) {
	if (!found) return h("p", { class: "quiet" }, "The body is no longer stored.");
	const images = found.html === null ? new Map() : await inlined(found, fileAt, signal);
	const views = [
		found.html !== null && ["HTML", () => html(found, images, framed, linked)],
		found.text !== null && ["Text", () => h("pre", { tabindex: "0" }, found.text)],
		found.attachments.length > 0 && [`Files (${found.attachments.length})`, () => files(found, fileAt, linkTo)],
		["Header", () => header(found)],
		...more,
	];
	return h(
		"div",
		{ class: "content" },
		button("Download .eml", async () => save(await file(`${address}/raw`), `${message.id}.eml`), "tiny"),
		found.truncated && h("p", { class: "quiet" }, "Truncated: the message is too long to show."),
		tabs("Message content", null, views.filter(Boolean)),
	);
}
