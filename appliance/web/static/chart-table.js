// A chart's numbers as a table, for people who cannot see the bars. Loaded when opened.
import { h } from "./dom.js";
import { table } from "./pieces.js";
import { number } from "./time.js";

export function chartTable(title, buckets, kinds, label, link) {
	const columns = [{ title: "From" }, ...kinds.map(([, name]) => ({ title: name, class: "number" }))];
	const cell = (field, each) =>
		link && each[field] ? h("a", { href: link(field, each) }, number(each[field])) : number(each[field]);
	const row = (each) => [label(each.start), ...kinds.map(([field]) => cell(field, each))];
	return table(title, columns, buckets.map(row));
}
