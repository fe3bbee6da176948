// Tables of the overview: latest problems, refusals by class, and the queue by provider. Loaded when
// there is data.
import { h } from "./dom.js";
import { latest } from "./latest-problems.js";
import { section, table } from "./pieces.js";
import { providerName } from "./provider-names.js";
import { count, number } from "./time.js";

const numeric = (title) => ({ title, class: "number" });

function refused(classes) {
	const rows = classes.map((each) => [each.bounce_class.replace("_", " "), number(each.bounced), number(each.failed)]);
	return table("Refused, by class", [{ title: "Class" }, numeric("Bounced"), numeric("Failed")], rows);
}

function queue(waiting, sandbox) {
	const columns = [{ title: "Provider" }, numeric("Due now"), numeric("Deferred")];
	const pools = waiting.map((each) => [
		each.pool === null ? "not looked up yet" : providerName(each.pool),
		number(each.due),
		number(each.deferred),
	]);
	const simulated = `${count(sandbox, "recipient is", "recipients are")} queued in the sandbox.`;
	return [
		pools.length > 0 && table("Queued mail, by provider", columns, pools),
		sandbox > 0 && h("p", { class: "quiet" }, simulated),
	];
}

export const tables = async (stats, problems) => [
	await latest(problems),
	stats.bounce_classes.length > 0 && section("Refused, by class", refused(stats.bounce_classes)),
	(stats.queue.length > 0 || stats.sandbox > 0) && section("Queue, by provider", queue(stats.queue, stats.sandbox)),
];
