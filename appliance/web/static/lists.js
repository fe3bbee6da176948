// Lists of messages and other resources, loaded in pages.
import { get } from "./api.js";
import { fragment, h, path, query } from "./dom.js";
import { button, errorText, outcomeBadge, row, table } from "./pieces.js";
import { number } from "./time.js";

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

/** In place of a list whose filter is wrong: the error of the API. The filter stays, to be corrected. */
export function wrongFilter(error) {
	if (error.status !== 400) throw error;
	return h("div", { class: "card" }, errorText(error));
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

/** Recipients of a message by outcome: counted by the server in a list, or here from all recipients. */
export function outcomes(message) {
	if (message.outcomes) return message.outcomes;
	const found = {};
	for (const { outcome } of message.recipients) found[outcome] = (found[outcome] ?? 0) + 1;
	return found;
}

/** The state of a message: the outcome that all recipients have, or how many were delivered or complained. */
function standing(message) {
	const found = outcomes(message);
	const words = Object.keys(found);
	const part = (many, what) => `${number(many)} of ${number(message.recipient_count)} ${what}`;
	if (words.length < 2) return [words[0] ?? message.status];
	const delivered = (found.delivered ?? 0) + (found.complained ?? 0);
	const waits = ["deferred", "queued", "scheduled"].find((each) => found[each]);
	if (found.complained) return ["complained", part(found.complained, "complained")];
	if (found.late_bounced) return ["late_bounced", part(found.late_bounced, "late bounced")];
	if (delivered) return [waits || "partial", part(delivered, "delivered")];
	if (waits) return [waits];
	return [found.failed || found.cancelled ? "failed" : "bounced"];
}

export const stateBadge = (message) => outcomeBadge(...standing(message));

/** The page of a template. The path of `new`, which may also be an alias, is a new template. */
export const templatePath = (alias) => path("/dashboard/templates", alias) + (alias === "new" ? "?stored" : "");
