// Forms, dialogs and confirmations. An API error appears next to the field at fault.
import { fragment, h } from "./dom.js";
import { button, copyButton, errorText, facts, head } from "./pieces.js";

let ids = 0;

function control(field, id) {
	const shared = {
		id,
		name: field.name,
		required: field.required,
		autocomplete: field.autocomplete ?? "off",
		"data-focus": field.autofocus,
		"aria-describedby": field.hint && `${id}-hint`,
	};
	if (field.type === "select") {
		const isKnown = !field.value || field.options.some(([value]) => value === field.value);
		const options = isKnown ? field.options : [...field.options, [field.value, field.value]];
		return h(
			"select",
			shared,
			options.map(([value, text]) => h("option", { value, selected: value === field.value }, text)),
		);
	}
	if (field.type === "choice") return choice(field, id);
	if (field.type === "textarea") return h("textarea", { ...shared, value: field.value ?? "", spellcheck: "false" });
	if (field.type === "checkbox")
		return h("input", { type: "checkbox", id, name: field.name, checked: field.value ?? false });
	return h("input", {
		...shared,
		type: field.type ?? "text",
		value: field.value ?? "",
		placeholder: field.placeholder,
		minlength: field.minlength,
		maxlength: field.maxlength,
		min: field.min,
		max: field.max,
	});
}

/** Radio buttons; each option is [value, name, explanation]. */
function choice(field, id) {
	const option = ([value, name, about], at) =>
		h(
			"label",
			{ class: "check", for: `${id}-${at}` },
			h("input", { type: "radio", id: `${id}-${at}`, name: field.name, value, checked: value === field.value }),
			h("span", null, h("b", null, name), h("span", { class: "hint" }, about)),
		);
	return h("div", { class: "choice", role: "radiogroup", "aria-labelledby": id }, field.options.map(option));
}

/**
 * A labelled control: {name, label, type, value, hint, options, required}. The type `choice` explains each of its
 * options.
 */
export function labelled(field) {
	const id = `field-${++ids}`;
	const hint = h("p", { class: "hint", id: `${id}-hint` }, field.hint);
	const made = control(field, id);
	if (field.type === "choice") return h("div", { class: "field" }, h("p", { class: "label", id }, field.label), made);
	if (field.type === "checkbox")
		return h(
			"div",
			{ class: "field" },
			h("label", { class: "check", for: id }, made, h("span", null, field.label)),
			field.hint && hint,
		);
	return h("div", { class: "field" }, h("label", { for: id }, field.label), made, field.hint && hint);
}

function values(form) {
	const found = {};
	for (const each of form.elements) {
		if (each.name && (each.type !== "radio" || each.checked))
			found[each.name] = each.type === "checkbox" ? each.checked : each.value;
	}
	return found;
}

function complain(form, error) {
	const named = error.field && form.elements.namedItem(error.field);
	const culprit = named instanceof RadioNodeList ? named[0] : named;
	const field = culprit?.closest(".field");
	const text = errorText(error, field && [`${field.querySelector("label, .label").textContent}: `, error.detail]);
	if (field) {
		culprit.setAttribute("aria-invalid", "true");
		field.append(text);
		culprit.focus();
	} else if (form.matches(".inline")) form.append(text);
	else form.querySelector(".actions").before(text);
}

/** A form. `send` gets its values; API errors appear where they belong. */
export function form({ fields, submit, send, inline = false, extra = [], kind = inline ? "" : "primary" }) {
	const done = h("button", { class: kind, type: "submit" }, submit);
	const made = h(
		"form",
		{
			class: inline ? "inline" : "",
			onsubmit: async (event) => {
				event.preventDefault();
				if (done.ariaBusy) return;
				for (const each of made.querySelectorAll(".error")) each.remove();
				for (const each of made.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
				done.ariaBusy = "true";
				try {
					await send(values(made), made);
				} catch (error) {
					if (error.status === undefined) throw error;
					complain(made, error);
				} finally {
					done.ariaBusy = null;
				}
			},
		},
		fields.map(labelled),
		h("div", { class: "actions" }, extra, done),
	);
	return made;
}

/** A dialog. Returns a function that closes it. */
export function dialog(title, build) {
	const opened = document.activeElement;
	const close = () => made.close();
	const made = h(
		"dialog",
		{
			"aria-label": title,
			onclose: () => {
				made.remove();
				opened?.focus?.();
			},
		},
		h("h2", null, title),
		build(close),
	);
	document.body.append(made);
	made.showModal();
	made.querySelector("[data-focus]")?.focus();
	return close;
}

/** A dialog with one form, explained by `about`. After `send` succeeds it closes, and `done` gets the result. */
export const formDialog = (title, { about, send, done, extra, ...more }) =>
	dialog(title, (close) => [
		about && h("p", { class: "quiet" }, about),
		form({
			...more,
			extra: [extra, h("button", { type: "button", onclick: close }, "Cancel")],
			async send(values) {
				const result = await send(values);
				close();
				await done?.(result, values);
			},
		}),
	]);

/** Confirm an action that cannot be undone. Resolves to the choice. */
export function confirmed(title, text, label, keep = "Cancel", kind = "danger") {
	return new Promise((resolve) => {
		let said = false;
		const close = dialog(title, (end) => [
			h("p", { class: "quiet" }, text),
			h(
				"div",
				{ class: "actions" },
				h("button", { type: "button", onclick: () => end() }, keep),
				h(
					"button",
					{
						type: "button",
						class: kind,
						onclick: () => {
							said = true;
							end();
						},
					},
					label,
				),
			),
		]);
		document.querySelector("dialog[open]").addEventListener("close", () => resolve(said));
		return close;
	});
}

/** Show a new key or password once. `rows` are [name, value] pairs, including the secret. */
export const secretBox = (title, rows, ...more) => shownOnce(title, "The server stores only a hash.", rows, more);

/** Values such as "587 (STARTTLS) or 465 (TLS)", each copyable on its own. */
const choices = (text) => (/^\d+ \(/.test(text) ? text.split(" or ") : [text]);

/** Show a new secret once. `kept` says what the server stores. */
export function shownOnce(title, kept, rows, ...more) {
	const box = h(
		"div",
		{ class: "card secret stack", role: "region", "aria-label": title },
		h("h2", { tabindex: "-1" }, title),
		h("p", { class: "quiet" }, `Copy it now. It will not be shown again. ${kept}`),
		facts(
			rows.map(([name, value]) => [
				name,
				choices(value).map((each) => [
					h("code", { class: "break", "data-secret": name }, each),
					copyButton(/^\d+ \(/.test(each) ? each.split(" ")[0] : each, name),
				]),
			]),
		),
		more,
		h(
			"div",
			{ class: "actions" },
			button("I have saved it", () => box.remove(), "primary"),
		),
	);
	return box;
}

/** Shown instead of a page that failed to load. */
export function failure(error) {
	return fragment(
		head(error.status === 404 ? "Page not found" : "Something went wrong"),
		h("div", { class: "card" }, errorText(error)),
		h(
			"p",
			{ class: "row actions" },
			button("Try again", () => location.reload()),
			h("a", { class: "button", href: "/dashboard" }, "Overview"),
		),
	);
}
