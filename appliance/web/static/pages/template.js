// The template editor, with a preview.
import { del, get, put } from "../api.js";
import { fragment, h, may, path, toast } from "../dom.js";
import { confirmed, form, labelled } from "../form.js";
import { highlight } from "../highlight.js";
import { loader, paged, templatePath } from "../lists.js";
import { button, code, head, notice, section } from "../pieces.js";
import { escaped, filled, preview, variables } from "../preview.js";
import { guess, keptSamples } from "../samples.js";
import { streamOptions } from "../streams.js";
import { when } from "../time.js";

const NEW = "new";
const START = {
	alias: "",
	subject: "Welcome, {{name}}",
	text: "Hello {{name}}!\n\nGood to have you here.\n",
	html: "<h1>Hello {{name}}!</h1>\n<p>Good to have you here.</p>\n",
};
const FIELDS = ["subject", "text", "html"];
const COLUMNS = [
	{ title: "Version" },
	{ title: "Subject", class: "break" },
	{ title: "Saved", class: "side" },
	{ title: "Action", class: "side" },
];

/** Unsaved input, kept in this window across reloads. */
function drafts(alias) {
	const key = `template ${alias}`;
	return {
		read: () => JSON.parse(sessionStorage.getItem(key) ?? "null"),
		keep: (values) => sessionStorage.setItem(key, JSON.stringify(values)),
		drop: () => sessionStorage.removeItem(key),
	};
}

const tools = () => import("../template-tools.js");

function sample(names, values, changed) {
	return names.length
		? names.map((name) => {
				const made = labelled({ name: `sample ${name}`, label: name, value: values[name] ?? "" });
				made.querySelector("input").addEventListener("input", (event) => {
					values[name] = event.target.value;
					changed();
				});
				return made;
			})
		: [h("p", { class: "quiet small" }, "None yet. Write {{name}} to insert a value.")];
}

function viewer(values) {
	const subject = h("p", { class: "subject" });
	const mail = preview("HTML preview");
	const text = h("pre", { class: "box", tabindex: "0" });
	const sheet = h("div", { class: "sheet" }, subject, mail.frame);
	const width = (label, phone) =>
		h(
			"button",
			{
				type: "button",
				class: "tiny",
				"aria-pressed": String(!phone),
				onclick: (event) => {
					for (const each of event.target.parentElement.children) each.ariaPressed = String(each === event.target);
					sheet.classList.toggle("phone", phone);
				},
			},
			label,
		);
	const widths = h(
		"div",
		{ class: "row", role: "group", "aria-label": "Width" },
		width("Desktop", false),
		width("Phone", true),
	);
	return {
		content: h(
			"div",
			{ class: "pair" },
			h("div", null, h("div", { class: "titled" }, h("h3", null, "HTML"), widths), sheet),
			h("div", null, h("div", { class: "titled" }, h("h3", null, "Plain text")), text),
		),
		show(source) {
			subject.textContent = filled(source.subject, values) || "(no subject)";
			mail.frame.hidden = !source.html;
			mail.show(filled(source.html, values, escaped));
			text.textContent = filled(source.text, values) || "none";
		},
	};
}

/** Earlier versions; each can be loaded into the editor and saved as the newest. */
function versions(first, load, take) {
	const shown = (each) => [
		String(each.version),
		h("bdi", null, each.subject ?? ""),
		when(each.created_at),
		each.version === first.items[0].version
			? "in use"
			: h(
					"div",
					{ class: "row" },
					button("Compare versions", async () => (await tools()).showDiff(each, first.items[0]), "tiny", {
						"aria-label": `Compare versions ${each.version} and ${first.items[0].version}`,
					}),
					button("Edit version", () => take(each), "tiny", {
						"aria-label": `Edit version ${each.version}`,
						needs: "saveTemplate",
					}),
				),
	];
	return section("Versions", paged("Versions", COLUMNS, first, shown, load));
}

/** The rendered editor content, as the fields of a request; sent without saving. */
function unsaved(source, values) {
	if (!source.text && !source.html) throw new Error("Write the HTML or the plain text first.");
	const write = { html: escaped };
	return Object.fromEntries(
		FIELDS.filter((each) => source[each] !== "").map((each) => [each, filled(source[each], values, write[each])]),
	);
}

/** Reject an alias that exists (saving would overwrite it) or is reserved. */
async function checkNew(alias) {
	const refuse = (...detail) => {
		throw Object.assign(new Error("This alias is not allowed."), { status: 409, field: "alias", detail });
	};
	if (alias === NEW) refuse("This alias is reserved. Choose another one.");
	const taken = await get(path("/v1/templates", alias)).catch((error) => {
		if (error.status !== 404) throw error;
	});
	if (taken) refuse("A template with this alias exists. ", h("a", { href: templatePath(alias) }, "Open it"));
}

export default async function template(page) {
	const [name] = page.params;
	const isNew = name === NEW && !page.query.has("stored");
	const load = loader(page.signal, `${path("/v1/templates", name)}/versions`, "versions", "before");
	const [stored, earlier, streams] = await Promise.all([
		isNew ? START : get(path("/v1/templates", name), page.signal),
		isNew ? null : load(),
		streamOptions("that of the key or credential", page.signal),
	]);
	const saved = Object.fromEntries(FIELDS.map((each) => [each, stored[each] ?? ""]));
	const draft = drafts(isNew ? "" : name);
	const begun = draft.read();
	let { base = stored.version ?? 0, ...edits } = begun ?? {}; // the version that the draft is based on
	const source = { ...saved, ...edits };
	const kept = keptSamples(isNew ? "" : name);
	const values = kept.read();
	const shown = viewer(values);
	const samples = h("div", { class: "samples" });
	let names = null;

	function changed() {
		const found = variables(...FIELDS.map((each) => source[each]));
		if (names?.join() !== found.join()) {
			names = found;
			for (const each of found) values[each] ??= guess(each);
			samples.replaceChildren(
				...sample(found, values, () => {
					kept.keep(values);
					shown.show(source);
				}),
			);
		}
		shown.show(source);
	}
	async function save(alias, { unsubscribe, stream }) {
		const body = Object.fromEntries(FIELDS.filter((each) => source[each] !== "").map((each) => [each, source[each]]));
		const done = await put(path("/v1/templates", alias), {
			...body,
			unsubscribe,
			stream: stream || null,
			replaces: base,
		});
		draft.drop();
		toast(`Saved as version ${done.version}`);
		return done;
	}
	const clash = h("div", { "aria-live": "polite" });
	/** Someone else saved first: keep the text, and let the person compare or save over it. */
	async function showClash(error) {
		const current = await get(path("/v1/templates", name));
		const overwrite = () => {
			base = current.version;
			draft.keep({ ...source, base });
			editor.requestSubmit();
		};
		clash.replaceChildren(
			notice(
				"deferred",
				`${error.message} Your text is kept here.`,
				button("Compare texts", async () => (await tools()).showDiff(current, { ...source, version: "yours" }), "tiny"),
				button("Save my text", overwrite, "tiny"),
			),
		);
	}
	const editor = form({
		fields: [
			isNew && {
				name: "alias",
				label: "Alias",
				required: true,
				placeholder: "order-shipped",
				hint: "Lowercase letters, digits, _ and -. Your application refers to it.",
				autofocus: true,
			},
			{ name: "subject", label: "Subject", value: source.subject, maxlength: 500 },
			{ name: "html", label: "HTML", type: "textarea", value: source.html, hint: "Values are HTML-escaped." },
			{
				name: "text",
				label: "Plain text",
				type: "textarea",
				value: source.text,
				hint: "For readers without HTML. Set at least one of text and HTML.",
			},
			{
				name: "unsubscribe",
				label: "One-click unsubscribe link",
				type: "checkbox",
				value: stored.unsubscribe,
				hint: "Mail programs show it next to the sender. Only in messages to one recipient.",
			},
			{ name: "stream", label: "Stream", type: "select", value: stored.stream ?? "", options: streams },
		].filter(Boolean),
		submit: isNew ? "Create template" : "Save new version",
		async send(given) {
			if (isNew) await checkNew(given.alias);
			clash.replaceChildren();
			let done;
			try {
				done = await save(given.alias ?? name, given);
			} catch (error) {
				if (error.status !== 409 || isNew) throw error;
				return showClash(error);
			}
			if (isNew) keptSamples(done.alias).keep(values);
			if (isNew) await page.go(path("/dashboard/templates", done.alias), { replace: true });
			else await page.reload();
		},
	});
	editor.addEventListener("input", (event) => {
		if (!FIELDS.includes(event.target.name)) return;
		source[event.target.name] = event.target.value;
		draft.keep({ ...source, base });
		changed();
	});
	editor.addEventListener("keydown", (event) => {
		if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
		event.preventDefault();
		editor.requestSubmit();
	});
	editor.classList.add("editor");
	editor.querySelector(".actions").hidden = true; // the head has the button
	const [html, text] = ["html", "text"].map((each) => editor.elements.namedItem(each));
	const pair = h("div", { class: "pair" });
	html.closest(".field").before(pair);
	pair.append(html.closest(".field"), text.closest(".field"));
	highlight(html, "html");
	highlight(text, "text");
	changed();
	if (!may("saveTemplate")) {
		for (const each of editor.elements) each.disabled = true;
		editor.append(h("p", { class: "quiet small" }, "Only owners and developers can change templates."));
	}
	const saveButton = button(isNew ? "Create template" : "Save new version", () => editor.requestSubmit(), "primary", {
		needs: "saveTemplate",
	});
	const actions = isNew
		? [saveButton]
		: [
				button(
					"Delete template",
					async () => {
						if (
							!(await confirmed(
								`Delete ${name}?`,
								"Messages that use it will be rejected. Version numbers continue if you create it again.",
								"Delete template",
							))
						)
							return;
						await del(path("/v1/templates", name));
						draft.drop();
						await page.go("/dashboard/templates");
					},
					"danger",
					{ needs: "deleteTemplate" },
				),
				button(
					"Duplicate template",
					async () => {
						drafts("").keep(source);
						await page.go(path("/dashboard/templates", NEW));
					},
					"",
					{ needs: "saveTemplate" },
				),
				button(
					"Send a test",
					async () => {
						const given = Object.fromEntries(names.map((each) => [each, values[each] || each]));
						const isSaved = FIELDS.every((each) => source[each] === saved[each]);
						await page.sendTest(isSaved ? { template: name, variables: given } : unsaved(source, given));
					},
					"",
					{ needs: "sendTestEmail" },
				),
				saveButton,
			];
	return fragment(
		head(isNew ? "New template" : name, {
			crumb: { href: "/dashboard/templates", title: "Templates" },
			about: isNew ? null : [`Version ${stored.version}, saved `, when(stored.updated_at)],
			actions,
		}),
		begun &&
			notice(
				"deferred",
				"You have unsaved changes.",
				button(
					"Discard changes",
					async () => {
						draft.drop();
						await page.reload();
					},
					"tiny",
				),
			),
		h("div", { class: "card" }, clash, editor),
		section(
			"Sample values",
			h("p", { class: "quiet small" }, "Only for the preview and tests. This browser keeps them for the template."),
			samples,
			h(
				"div",
				{ class: "row bulk" },
				button("Variables from JSON", async () =>
					(await tools()).askVariables(values, (given) => {
						Object.assign(values, given);
						kept.keep(values);
						names = null;
						changed();
					}),
				),
			),
		),
		section("Preview", shown.content),
		!isNew &&
			versions(earlier, load, async (each) => {
				draft.keep(Object.fromEntries(FIELDS.map((field) => [field, each[field] ?? ""])));
				await page.reload();
			}),
		!isNew &&
			section(
				"Send with it",
				code(
					JSON.stringify(
						{
							from: "you@your-domain.example",
							to: "ada@example.net",
							template: name,
							variables: Object.fromEntries(names.map((each) => [each, "…"])),
						},
						null,
						2,
					),
					"the request's body",
				),
			),
	);
}
