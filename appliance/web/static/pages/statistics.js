// Results by sending domain, tag, template, provider or stream.
import { get } from "../api.js";
import { fragment, h, query } from "../dom.js";
import { shownName } from "../idn.js";
import { empty, head, rate, table } from "../pieces.js";
import { providerName } from "../provider-names.js";
import { number, when } from "../time.js";
import { segments } from "../toolbar.js";

const RANGES = [7, 30, 90];
// The title of each breakdown, and the message filter for its values.
const BY = {
	domain: ["Domain", "from"],
	tag: ["Tag", "tag"],
	template: ["Template", "q"],
	provider: ["Provider"],
	stream: ["Stream", "stream"],
};
const COLUMNS = ["Sent", "Delivered", "Bounced", "Failed", "Suppressed", "Cancelled", "Late bounced", "Complained"];
const wide = (name) => (COLUMNS.indexOf(name) < 2 ? "number" : "number wide");

function line(each, by, since, days) {
	const filter = each.value !== null && BY[by][1];
	const shown = by === "provider" ? providerName(each.value) : shownName(each.value ?? "Others");
	const href =
		by === "provider"
			? query("/dashboard/deliverability", { days, provider: each.value ?? "other" })
			: filter && query("/dashboard/messages", { [filter]: each.value, since });
	return {
		href,
		id: each.value ?? "",
		cells: [
			h("bdi", { class: "break" }, shown),
			...COLUMNS.map((name) => number(each[name.toLowerCase().replace(" ", "_")])),
			rate(each.bounce_rate, each.bounce_mark),
			rate(each.complaint_rate, each.complaint_mark),
		],
	};
}

const chosen = (label, links) =>
	segments(
		label,
		links.map(([text, values, current]) => [text, query("/dashboard/statistics", values), current]),
	);

export default async function statistics(page) {
	const by = page.query.get("by") in BY ? page.query.get("by") : "domain";
	const days = RANGES.find((each) => String(each) === page.query.get("days")) ?? 30;
	const [title] = BY[by];
	const columns = [
		{ title },
		...COLUMNS.map((name) => ({ title: name, class: wide(name) })),
		{ title: "Bounce rate", class: "number" },
		{ title: "Complaint rate", class: "number wide" },
	];
	const content = h("div");

	async function draw() {
		const [stats] = await Promise.all([get(query("/v1/stats", { days, by }), page.signal), import("../lists.js")]);
		const lines = stats.breakdown.map((each) => line(each, by, stats.days[0].start, days));
		const shown = lines.length
			? table(`Recipients by ${by}`, columns, lines, "cards")
			: empty(`No mail by ${by}`, `No mail with one in the last ${days} days.`);
		const until = stats.breakdown_until;
		const note = until && h("p", { class: "quiet" }, "Still being computed: data after ", when(until), " is missing.");
		(await import("../update.js")).update(content, [note, shown]);
	}
	await draw();
	page.every(30, draw);
	return fragment(
		head("Statistics", {
			crumb: { href: query("/dashboard", { days }), title: "Overview" },
			about: "Recipients per period (UTC), without test mail. With several tags, a recipient counts for each.",
		}),
		h(
			"div",
			{ class: "titled" },
			chosen(
				"Break down by",
				Object.keys(BY).map((each) => [`By ${each}`, { by: each, days }, each === by]),
			),
			chosen(
				"Period",
				RANGES.map((each) => [`${each} days`, { by, days: each }, each === days]),
			),
		),
		content,
	);
}
