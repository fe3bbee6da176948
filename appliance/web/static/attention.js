// What needs attention, on the overview. Loaded when there is something.
import { notice } from "./basics.js";
import { h } from "./dom.js";
import { shownName } from "./idn.js";
import { when } from "./time.js";

// Warnings of the account that a problem of this kind already shows.
const SAME = {
	no_credits: "credits_low",
	pool_held: "provider_blocking",
	mail_paused: "mail_paused",
	webhook_failing: "webhook_failing",
	disk_low: "disk_low",
};

/** The warnings that no problem shows. */
export const others = (warnings, problems) =>
	warnings.filter((warning) => !problems.some((problem) => problem.kind === SAME[warning.code]));

const shown = (problem) =>
	notice(
		problem.severity === "critical" ? "bounced" : "deferred",
		[
			h("b", null, shownName(problem.title)),
			" ",
			h("span", { class: "quiet small" }, "since ", when(problem.since)),
			h("div", { class: "break" }, shownName(problem.detail)),
		],
		h("a", { href: problem.link, "aria-label": `View details: ${problem.title}` }, "View details"),
	);

export const attention = (problems) =>
	h("section", { class: "attention", "aria-label": "Needs attention" }, problems.map(shown));
