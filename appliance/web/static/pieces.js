// Components that pages share, including basics.js: tables, facts, code blocks, empty states.
import { badge, copyButton } from "./basics.js";
import { h } from "./dom.js";
import { percent } from "./time.js";

export * from "./basics.js";

/** A text to copy; the class `lines` keeps its lines unwrapped. */
export const code = (text, what = "this", kind = "") =>
	h("div", { class: `code ${kind}` }, h("pre", { tabindex: "0" }, text), copyButton(text, what));

/** An empty state: what to do next. */
export const empty = (title, text, ...next) =>
	h("div", { class: "card empty" }, h("h2", null, title), h("p", null, text), next);

/**
 * A table: columns are {title, class, lead}, rows are arrays of cells or {cells, href, id}. The title of a column
 * with `hidden` is only read aloud. With the class `cards`, each row becomes a card of two lines on a narrow screen:
 * the lead column, states and buttons, then the rest.
 */
export function table(caption, columns, rows, kind) {
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
			{ "aria-label": caption, class: kind },
			h(
				"thead",
				null,
				h(
					"tr",
					null,
					columns.map(({ title, needs, hidden, ...column }) =>
						h(
							"th",
							{ scope: "col", class: column.class, needs },
							title && !hidden ? title : h("span", { class: "gone" }, title || "Actions"),
						),
					),
				),
			),
			body,
		),
	);
}

/** One row; `href` links the whole row through its first cell, and `title` is its text in full. */
export function row(columns, each) {
	const cells = each.cells ?? each;
	const lead = Math.max(
		0,
		columns.findIndex((column) => column.lead),
	);
	return h(
		"tr",
		{ class: each.href && "linked", "data-id": each.id, title: each.title },
		cells.map((cell, at) =>
			h(
				"td",
				{
					class: `${columns[at].class ?? ""}${at === lead ? " lead" : ""}`,
					"data-title": columns[at].title,
					needs: columns[at].needs,
				},
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

/** The API's text, with the request id under "Details". */
export const errorText = (error, text = error.message) =>
	h(
		"div",
		{ class: "error", role: "alert" },
		text,
		error.requestId &&
			h(
				"details",
				null,
				h("summary", null, "Details"),
				"Request ",
				h("code", null, error.requestId),
				" ",
				copyButton(error.requestId, "request id"),
			),
	);

/** A rate as the server judges it: grey without enough mail, marked if it is high. */
export function rate(share, mark) {
	const text = percent(share);
	if (mark === "too_few") return h("span", { class: "quiet" }, text);
	if (mark === "good") return text;
	return mark === "high" ? badge("deferred", `${text}, high`) : badge("bounced", `${text}, too high`);
}
