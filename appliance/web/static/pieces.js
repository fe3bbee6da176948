// Components that pages share: heads, badges, buttons, tables, errors, empty states, copy buttons.
import { copy, h } from "./dom.js";

/** The top of a page; `actions` at its right. */
export function head(title, { about, crumb, actions = [], badge: status } = {}) {
	return h(
		"div",
		{ class: "head" },
		h(
			"div",
			null,
			crumb && h("p", { class: "crumb" }, h("a", { href: crumb.href }, `← ${crumb.title}`)),
			h("h1", { tabindex: "-1" }, h("bdi", null, title), status && " ", status),
			about && h("p", null, about),
		),
		actions.length > 0 && h("div", { class: "actions" }, actions),
	);
}

export const section = (title, ...content) => h("section", null, h("h2", null, title), content);

/** A status: always a word beside the colour. */
export const badge = (status, word = status) => h("span", { class: `badge ${status}` }, word);

/** A button; `does` may take its time, and the button waits for it. Its errors are shown beside it. */
export function button(label, does, kind = "", extra = {}) {
	const made = h(
		"button",
		{
			type: "button",
			class: kind,
			...extra,
			onclick: async () => {
				if (made.ariaBusy) return; // not disabled: that would take the focus away
				made.ariaBusy = "true";
				made.parentElement?.querySelector(":scope > .error")?.remove();
				try {
					await does(made);
				} catch (error) {
					if (error.name !== "AbortError") made.after(errorText(error));
				} finally {
					made.ariaBusy = null;
				}
			},
		},
		label,
	);
	return made;
}

export const copyButton = (text, what = "value") =>
	h("button", { type: "button", class: "tiny", "aria-label": `Copy ${what}`, onclick: () => copy(text) }, "Copy");

/** Something to paste elsewhere; with the class `lines` its lines stay whole. */
export const code = (text, what = "this", kind = "") =>
	h("div", { class: `code ${kind}` }, h("pre", { tabindex: "0" }, text), copyButton(text, what));

/** The API's own words, and the request id to copy. */
export function errorText(error, text = error.message) {
	return h(
		"p",
		{ class: "error", role: "alert" },
		text,
		error.requestId && [
			" ",
			h("span", { class: "id" }, "Request ", h("code", null, error.requestId), " "),
			copyButton(error.requestId, "request id"),
		],
	);
}

/** What stands where there is nothing yet: what to do next. */
export const empty = (title, text, ...next) =>
	h("div", { class: "card empty" }, h("h2", null, title), h("p", null, text), next);

export const notice = (kind, text, ...aside) =>
	h("div", { class: `notice ${kind}`, role: "note" }, h("div", null, text), aside);

/** A table: columns are {title, class}, rows are arrays of cells or {cells, href, id}. */
export function table(caption, columns, rows) {
	const body = h(
		"tbody",
		null,
		rows.map((each) => row(columns, each)),
	);
	return h(
		"div",
		{ class: "table" },
		h(
			"table",
			{ "aria-label": caption },
			h(
				"thead",
				null,
				h(
					"tr",
					null,
					columns.map(({ title, ...more }) => h("th", { scope: "col", ...more }, title)),
				),
			),
			body,
		),
	);
}

/** One row; with `href` the whole of it is a link, by its first cell. */
export function row(columns, each) {
	const cells = each.cells ?? each;
	return h(
		"tr",
		{ class: each.href && "linked", "data-id": each.id },
		cells.map((cell, at) =>
			h(
				"td",
				{ ...columns[at], title: null },
				at === (each.link ?? 0) && each.href ? h("a", { href: each.href }, cell) : cell,
			),
		),
	);
}

/** Names and values in two columns. */
export const facts = (pairs) =>
	h(
		"dl",
		{ class: "facts" },
		pairs.filter(Boolean).map(([name, ...value]) => [h("dt", null, name), h("dd", null, value)]),
	);
