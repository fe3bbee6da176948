// The warm-ups of sending addresses as a table.
import { h } from "./dom.js";
import { table } from "./pieces.js";
import { providerName } from "./provider-names.js";
import { ago, number } from "./time.js";

const WARMUPS = [
	{ title: "Provider" },
	{ title: "From" },
	{ title: "Warm-up day", class: "side" },
	{ title: "Per hour", class: "number" },
	{ title: "Used", class: "number" },
	{ title: "Next", class: "side" },
];

const warmupRow = (each) => [
	providerName(each.pool),
	h("span", { class: "mono" }, each.address),
	`${each.day} of ${each.days}`,
	number(each.per_hour),
	number(each.used),
	each.next_at ? ago(each.next_at) : "now",
];

export const warmupTable = (warmups) =>
	table("Warm-up, by provider pool and sending address", WARMUPS, warmups.map(warmupRow), "cards");
