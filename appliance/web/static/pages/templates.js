// The list of templates.
import { fragment, h } from "../dom.js";
import { loader, paged, templatePath } from "../lists.js";
import { code, empty, head } from "../pieces.js";
import { when } from "../time.js";

const COLUMNS = [
	{ title: "Alias" },
	{ title: "Subject", class: "cut second" },
	{ title: "Variables", class: "cut" },
	{ title: "Version", class: "number" },
	{ title: "Saved", class: "side" },
];

const listed = (each) => ({
	href: templatePath(each.alias),
	cells: [
		h("span", { class: "mono" }, each.alias),
		h("bdi", null, each.subject ?? "–"),
		h("span", { class: "mono quiet" }, each.variables.join(", ") || "none"),
		String(each.version),
		when(each.updated_at),
	],
});

export default async function templates(page) {
	const load = loader(page.signal, "/v1/templates", "templates");
	const first = await load();
	const create = h(
		"a",
		{ class: "button primary", href: "/dashboard/templates/new", needs: "saveTemplate" },
		"New template",
	);
	return fragment(
		head("Templates", {
			about: "Subject and body with placeholders such as {{name}}, used by alias when you send.",
			actions: [create],
		}),
		first.items.length
			? paged("Templates", COLUMNS, first, listed, load, "Load more")
			: empty(
					"No template yet",
					"Your application sends values instead of whole texts.",
					h(
						"p",
						{ needs: "saveTemplate" },
						h("a", { class: "button", href: "/dashboard/templates/new" }, "Create a template"),
					),
					code('"template": "welcome", "variables": {"name": "Ada"}', "the fields of a request"),
				),
	);
}
