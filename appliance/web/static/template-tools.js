// Extras of the template editor: compare two versions, and fill in variables from JSON.
import { h } from "./dom.js";
import { dialog, form } from "./form.js";
import { button } from "./pieces.js";

const MOST = 1500; // lines to compare

/** The lines of two texts in order: [mark, line]. The mark is "-" (removed), "+" (added) or " ". */
export function compared(before, after) {
	const [old, now] = [before, after].map((text) => (text === "" ? [] : text.split("\n")));
	if (old.length > MOST || now.length > MOST)
		return before === after ? [] : [...old.map((line) => ["-", line]), ...now.map((line) => ["+", line])];
	// For each pair of positions, the number of equal lines from there on.
	const same = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
	for (let i = old.length - 1; i >= 0; i--)
		for (let j = now.length - 1; j >= 0; j--)
			same[i][j] = old[i] === now[j] ? same[i + 1][j + 1] + 1 : Math.max(same[i + 1][j], same[i][j + 1]);
	const found = [];
	let [i, j] = [0, 0];
	while (i < old.length || j < now.length) {
		if (i < old.length && j < now.length && old[i] === now[j]) {
			found.push([" ", old[i]]);
			i += 1;
			j += 1;
		} else if (j === now.length || (i < old.length && same[i + 1][j] >= same[i][j + 1])) found.push(["-", old[i++]]);
		else found.push(["+", now[j++]]);
	}
	return found;
}

const KINDS = { "-": "gone-line", "+": "new-line", " ": "" };
const TITLES = { subject: "Subject", html: "HTML", text: "Plain text" };

/** The differences between two versions, field by field. */
function differences(earlier, current) {
	const parts = Object.entries(TITLES)
		.filter(([field]) => (earlier[field] ?? "") !== (current[field] ?? ""))
		.map(([field, title]) => [
			h("h3", null, title),
			h(
				"pre",
				{ class: "box diff", tabindex: "0", "aria-label": `${title}: - marks removed lines, + added lines` },
				compared(earlier[field] ?? "", current[field] ?? "").map(([mark, line]) =>
					h("span", { class: KINDS[mark] }, `${mark} ${line}\n`),
				),
			),
		]);
	return parts.length ? parts : h("p", { class: "quiet" }, "No differences.");
}

/** Show the differences between an earlier version and the current one. */
export function showDiff(earlier, current) {
	dialog(`Version ${earlier.version} compared with version ${current.version}`, (close) => [
		differences(earlier, current),
		h(
			"div",
			{ class: "actions" },
			button("Close", () => close()),
		),
	]);
}

/** Ask for variables as JSON; `take` gets the texts, numbers and booleans. */
export function askVariables(values, take) {
	dialog("Variables from JSON", (close) =>
		form({
			fields: [
				{
					name: "variables",
					label: "Variables as JSON",
					type: "textarea",
					value: JSON.stringify(values, null, 2),
					hint: "As your application sends them: an object of names and values.",
					autofocus: true,
				},
			],
			submit: "Use variables",
			extra: button("Cancel", () => close()),
			send({ variables }) {
				let given = null;
				try {
					given = JSON.parse(variables);
				} catch {
					// reported below
				}
				if (given === null || typeof given !== "object" || Array.isArray(given))
					throw Object.assign(new Error("variables"), {
						status: 400,
						field: "variables",
						detail: "This is not a JSON object.",
					});
				const plain = Object.entries(given).filter(([, value]) => value !== null && typeof value !== "object");
				take(Object.fromEntries(plain.map(([name, value]) => [name, String(value)])));
				close();
			},
		}),
	);
}
