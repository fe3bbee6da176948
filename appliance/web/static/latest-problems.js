// Latest undelivered recipients, each linked to its message. Loaded when there may be some.
import { h, path } from "./dom.js";
import { badge, section } from "./basics.js";
import { ago } from "./time.js";

function problem(each) {
	return h(
		"li",
		{ "data-key": each.recipient_id },
		badge(each.outcome),
		h("a", { href: path("/dashboard/messages", each.message_id) }, h("bdi", { class: "mono" }, each.email)),
		h("span", { class: "quiet small subject" }, h("bdi", null, each.subject)),
		h("span", { class: "quiet small" }, ago(each.happened_at)),
		h("code", { class: "reason" }, h("bdi", null, each.last_smtp_response ?? "no reply")),
	);
}

/** Null without problems. */
export async function latest(problems) {
	if (!problems.length) return null;
	return section("Latest problems", h("ul", { class: "card problems" }, problems.map(problem)));
}
