// A chart's numbers as a table, for people who do not see the bars; loaded when it is opened.
import { table } from "./pieces.js";
import { number } from "./time.js";

export function chartTable(title, buckets, kinds, label) {
	const columns = [{ title: "From" }, ...kinds.map(([, name]) => ({ title: name, class: "number" }))];
	const row = (each) => [label(each.start), ...kinds.map(([field]) => number(each[field]))];
	return table(title, columns, buckets.map(row));
}
