// The head of the operator's page: is mail going out? A verdict, four numbers, and the last 24 hours of all accounts.
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { notice } from "./pieces.js";
import { providerName } from "./provider-names.js";
import { tile, tiles } from "./tile.js";
import { ago, count, hour, number, percent } from "./time.js";

const KINDS = [
	["sent", "Sent", "sent"],
	["delivered", "Delivered", "delivered"],
	["bounced", "Bounced", "bounced"],
	["failed", "Failed", "failed"],
];
const SHOWN = 3; // providers named in the verdict
const LATE = 300_000; // milliseconds that due mail of a working server does not wait

const sum = (entries, kind) => entries.reduce((total, each) => total + each[kind], 0);
const recipients = (many) => count(many, "recipient", "recipients");
const names = (pools) => {
	const some = pools.slice(0, SHOWN).map((each) => providerName(each.pool));
	return `${some.join(", ")}${pools.length > SHOWN ? ` and ${number(pools.length - SHOWN)} more` : ""}`;
};

/** [status, short answer, explanation] from the queue and the hours of all accounts. */
export function verdict({ paused, pools, sandbox = 0 }, hours) {
	const held = pools.filter((each) => each.held_at);
	const slowed = pools.filter((each) => !each.held_at && each.slowed_until);
	const queued = sandbox + sum(pools, "waiting") + sum(pools, "deferred");
	const lately = hours.slice(-2);
	const delivered = sum(lately, "delivered");
	const since = hour(lately[0].start);
	const waits = queued ? `${recipients(queued)} queued.` : "The queue is empty.";
	if (paused) return ["bounced", "No.", `All mail is paused. ${waits}`];
	if (held.length) return ["deferred", "Not to all providers.", `Mail to ${names(held)} is held. ${waits}`];
	if (slowed.length) return ["deferred", "Yes, but slower.", `${names(slowed)} limited the rate. ${waits}`];
	if (delivered) return ["delivered", "Yes.", `${recipients(delivered)} delivered since ${since}. ${waits}`];
	const late = pools.filter((each) => each.waiting && Date.now() - Date.parse(each.oldest_at) > LATE);
	if (late.length)
		return ["bounced", "No.", `Nothing was delivered since ${since}. Mail to ${names(late)} is due. ${waits}`];
	if (queued) return ["deferred", "Not yet.", `Nothing was delivered since ${since}. ${waits}`];
	return ["queued", "Nothing to send.", `No mail since ${since}. ${waits}`];
}

/** The parts of the head; `queue` is the answer of /v1/admin/queue, `hours` those of /v1/admin/stats. */
export async function goingOut(queue, { hours }) {
	const [status, answer, text] = verdict(queue, hours);
	const delivered = sum(hours, "delivered");
	const bounced = sum(hours, "bounced");
	const tried = delivered + bounced + sum(hours, "failed");
	const due = queue.sandbox + sum(queue.pools, "waiting");
	const deferred = sum(queue.pools, "deferred");
	const oldest = queue.pools
		.map((each) => each.oldest_at)
		.filter(Boolean)
		.sort()[0];
	const spark = (kind) => hours.map((each) => each[kind]);
	return h(
		"section",
		{ class: "stack", "aria-label": "Is mail going out?" },
		notice(status, [h("b", null, `Is mail going out? ${answer}`), " ", text]),
		tiles(
			tile("Delivered, 24 hours", number(delivered), {
				kind: "delivered",
				notes: [tried > 0 && percent(delivered / tried)],
				spark: spark("delivered"),
			}),
			tile("Bounced, 24 hours", number(bounced), {
				kind: "bounced",
				notes: [tried > 0 && percent(bounced / tried)],
				spark: spark("bounced"),
			}),
			tile("Queued", number(due + deferred), {
				notes: [due + deferred > 0 && `${number(due)} due, ${number(deferred)} to be retried`],
			}),
			tile("Oldest in the queue", oldest ? ago(oldest) : "–"),
		),
		h("div", { class: "card" }, chart("Recipients per hour, all accounts", hours, KINDS, hour, KINDS[0])),
	);
}
