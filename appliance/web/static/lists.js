// Lists of messages and other resources, loaded page by page.
import { get } from "./api.js";
import { fragment, h, path, query, style } from "./dom.js";
import { button, row, table } from "./pieces.js";

await style("lists");

/** What fetches a page of a list of the API: {items, next}. `cursor` is the parameter that `next` goes into. */
export function loader(signal, address, plural, cursor = "after", more = {}) {
	return async (from) => {
		const found = await get(query(address, { ...more, [cursor]: from }), signal);
		return { items: found[plural], next: found.next };
	};
}

/** A button that fetches one page after the other until there is none. */
export function older(next, load, label = "Load older") {
	const place = h("div", { class: "more" });
	const show = (cursor) =>
		place.replaceChildren(...(cursor ? [button(label, async () => show(await load(cursor)))] : []));
	show(next);
	return place;
}

/** A table that grows by pages: `first` and what `load(cursor)` gives are {items, next}. */
export function paged(caption, columns, first, toRow, load, label) {
	const made = table(caption, columns, first.items.map(toRow));
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

/** The status of a message in a list: `deferred` and `bounced` where its recipients say more than the message. */
export function standing(message) {
	if (message.status === "queued" && message.recipients.some((each) => each.status === "deferred")) return "deferred";
	if (message.status === "failed" && message.recipients.every((each) => each.status === "bounced")) return "bounced";
	return message.status;
}

/** The page of a template; the address of `new`, which a program may have used as an alias, is that of a new one. */
export const templatePath = (alias) => path("/dashboard/templates", alias) + (alias === "new" ? "?stored" : "");
