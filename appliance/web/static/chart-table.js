// A chart's numbers as a table, for people who do not see the bars; loaded when it is opened.
import { table } from "./pieces.js";
import { number } from "./time.js";

const KINDS = ["sent", "delivered", "bounced", "failed"];

export function chartTable(title, buckets, label) {
	const columns = [
		{ title: "From" },
		...["Sent", "Delivered", "Bounced", "Failed"].map((name) => ({ title: name, class: "number" })),
	];
	return table(
		title,
		columns,
		buckets.map((each) => [label(each.start), ...KINDS.map((kind) => number(each[kind]))]),
	);
}
