// Warnings of the overview, each with a link to fix it. Loaded when there are any.
import { h, path } from "./dom.js";
import { notice } from "./basics.js";
import { shownName } from "./idn.js";

const GRAVE = new Set(["account_suspended", "no_credits", "disk_low", "mail_paused", "webhook_failing"]);
const FIXES = {
	no_domain: () => "/dashboard/domains",
	domain_pending: (subject) => path("/dashboard/domains", subject),
	mail_paused: () => "/dashboard/messages?waiting=true",
	pool_held: () => "/dashboard/messages?waiting=true",
	webhook_failing: () => "/dashboard/webhook",
	no_credits: () => "/dashboard/account",
};

function warning(each) {
	const href = FIXES[each.code]?.(each.subject);
	return notice(
		GRAVE.has(each.code) ? "bounced" : "deferred",
		shownName(each.text),
		href && h("a", { href }, "View details"),
	);
}

/** The first steps already say that a domain is missing. */
export const warnings = (given, steps) =>
	h("div", null, given.filter((each) => !(steps && each.code === "no_domain")).map(warning));
