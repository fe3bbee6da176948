// Lists of messages and other resources, loaded in pages.
import { get } from "./api.js";
import { fragment, h, path, query } from "./dom.js";
import { button, row, table } from "./pieces.js";

const TRIES = 40; // empty pages to skip, from a search that a busy server cut short

/** Fetches a page of an API list: {items, next}. `cursor` is the parameter for `next`. */
export function loader(signal, address, plural, cursor = "after", more = {}) {
	return async (from) => {
		let found = { next: from };
		for (let tries = 0; tries < TRIES; tries += 1) {
			found = await get(query(address, { ...more, [cursor]: found.next }), signal);
			if (found[plural].length || !found.next) break;
		}
		return { items: found[plural], next: found.next };
	};
}

/** A button that fetches page after page until the last. */
export function older(next, load, label = "Load older") {
	const place = h("div", { class: "more" });
	const show = (cursor) =>
		place.replaceChildren(...(cursor ? [button(label, async () => show(await load(cursor)))] : []));
	show(next);
	return place;
}

/** A table that grows by pages: `first` and the result of `load(cursor)` are {items, next}. */
export function paged(caption, columns, first, toRow, load, label) {
	const made = table(caption, columns, first.items.map(toRow), "cards");
	const body = made.querySelector("tbody");
	return fragment(
		made,
		older(
			first.next,
			async (cursor) => {
				const { items, next } = await load(cursor);
				body.append(...items.map((each) => row(columns, toRow(each))));
				return next;
			},
			label,
		),
	);
}

/** A message's status, or the common outcome of its recipients if that says more. */
export function standing(message) {
	const words = new Set(message.recipients.map((recipient) => recipient.outcome));
	if (message.status === "queued" && words.has("deferred")) return "deferred";
	if (message.status !== "failed" || words.size === 0) return message.status;
	if (words.size === 1) return [...words][0];
	return words.has("failed") || words.has("cancelled") ? "failed" : "bounced";
}

/** The page of a template. The path of `new`, which may also be an alias, is a new template. */
export const templatePath = (alias) => path("/dashboard/templates", alias) + (alias === "new" ? "?stored" : "");
