// The ramp on the operator's page: direct delivery compared with the relay, and the suggested percentages. Loaded
// while the ramp is on.
import { h } from "./dom.js";
import { badge, section, table } from "./pieces.js";
import { providerName } from "./provider-names.js";
import { number, percent, when } from "./time.js";

const numeric = (title, wide) => ({ title, class: wide ? "number wide" : "number" });
const FIGURES = [
	{ title: "Provider" },
	{ title: "Route" },
	numeric("Delivered"),
	numeric("Deferred"),
	numeric("Bounced"),
	numeric("Complaints", true),
	numeric("Mean time", true),
	numeric("Within a minute", true),
];
const ACTIONS = { raise: "success", hold: "", lower: "failed" };

const figureRow = (each) => [
	each.provider === null ? h("b", null, "All providers") : providerName(each.provider),
	each.route === "direct" ? "direct" : "by the relay",
	number(each.delivered),
	number(each.deferred),
	number(each.bounced + each.failed),
	number(each.complaints),
	each.mean_seconds === null ? "–" : `${number(each.mean_seconds)} s`,
	each.delivered ? percent(each.within_minute / each.delivered) : "–",
];

const suggestionRow = (each) => [
	each.provider === null ? "All others" : providerName(each.provider),
	badge(ACTIONS[each.action], each.action),
	`${each.percent} %`,
	each.reason,
];
const SUGGESTIONS = [{ title: "Provider" }, { title: "Suggestion" }, numeric("Percent"), { title: "Reason" }];

export function rampSection(ramp) {
	const own = Object.entries(ramp.providers).map(([name, percent]) => `${providerName(name)}: ${percent} %`);
	const about = [
		`${ramp.percent} % of the recipients go direct, the others by the relay.`,
		own.length > 0 && ` ${own.join(", ")}.`,
		ramp.auto ? " The percentages change automatically." : " Change them with: appliance ramp set",
	];
	const changed =
		ramp.changed_at &&
		h("p", { class: "quiet small" }, "Last change ", when(ramp.changed_at), ramp.reason && `: ${ramp.reason}`);
	return section(
		"Ramp from the relay to direct delivery",
		h(
			"div",
			{ class: "stack" },
			h("p", { class: "quiet" }, about),
			changed,
			table("Suggested percentages", SUGGESTIONS, ramp.suggestions.map(suggestionRow), "cards"),
			ramp.figures.length > 0
				? table("Results of the last 24 hours, by provider and route", FIGURES, ramp.figures.map(figureRow), "cards")
				: h("p", { class: "quiet" }, "No results in the last 24 hours."),
		),
	);
}
