// Components that every page uses: heads, badges, buttons, notices.
import { copy, h } from "./dom.js";

/** Page head with `actions` on the right. */
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

/** A status: always a word next to the colour. */
export const badge = (status, word = status) => h("span", { class: `badge ${status}` }, word);

/** The badge of an outcome, in words: "late bounced". */
export const outcomeBadge = (outcome, word = outcome.replace("_", " ")) => badge(outcome, word);

/** A button. `does` may be async; errors appear next to the button. */
export function button(label, does, kind = "", extra = {}) {
	const made = h(
		"button",
		{
			type: "button",
			class: kind,
			...extra,
			onclick: async () => {
				if (made.ariaBusy) return; // not disabled, which would lose the focus
				made.ariaBusy = "true";
				(made.closest(".opens") ?? made).parentElement?.querySelector(":scope > .error")?.remove();
				try {
					await does(made);
				} catch (error) {
					const place = made.closest(".opens") ?? made; // a menu is closed by now
					if (error.name !== "AbortError") place.after((await import("./pieces.js")).errorText(error));
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

export const notice = (kind, text, ...aside) =>
	h("div", { class: `notice ${kind}`, role: "note" }, h("div", null, text), aside);

/** Grey lines where content will be, for a wait of more than 150 ms. */
export const skeleton = (lines = 6) =>
	h(
		"div",
		{ class: "skeleton", "aria-hidden": "true" },
		Array.from({ length: lines }, () => h("i")),
	);
