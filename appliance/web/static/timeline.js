// The timeline of one recipient: acceptance, every attempt with the server's replies, and the next step.
import { fragment, h } from "./dom.js";
import { badge, outcomeBadge } from "./pieces.js";
import { advice, isProblem } from "./problems.js";
import { ago, span, when } from "./time.js";

// Where our own sentences contain a UTC time. Nothing that a mail server said is treated as one.
const BEFORE = [
	String.raw`scheduled: (?:queued at|due since) `,
	String.raw`(?:deferred: (?:try|attempt) \d+ of \d+|delivered|bounced|failed) at `,
	String.raw`waiting: (?:pool \S+ slowed down until |a session with \S+(?: \(\S+\))? is under way since )`,
].join("|");
const CLOCK = /(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:\.\d+Z)?/;
const OURS = new RegExp(`^(${BEFORE})(${CLOCK.source})`);

/** An API sentence with its UTC time in the viewer's time zone, and the time left until `next`. */
function sentence(text, capital = false, next = null) {
	const begun = (words) => (capital ? words.charAt(0).toUpperCase() + words.slice(1) : words);
	const found = OURS.exec(text);
	if (!found) return [begun(text)];
	const [whole, before, clock] = found;
	const at = clock.length === 8 ? `${new Date().toISOString().slice(0, 10)}T${clock}` : clock.replace(" ", "T");
	const left = next && Date.parse(next) > Date.now() && [" (", ago(next), ")"];
	return [begun(before), when(at.endsWith("Z") ? at : `${at}.000Z`), left, text.slice(whole.length)];
}

/** Result of an attempt, by our decision; the sandbox makes none. */
function outcome(attempt) {
	const decided = /^[a-z]+/.exec(attempt.decision ?? "")?.[0];
	if (decided) return decided;
	const kind = Math.floor((attempt.smtp_code ?? 0) / 100);
	return { 2: "delivered", 4: "deferred", 5: "bounced" }[kind] ?? "deferred";
}

/** The encryption of a connection: "TLSv1.3, TLS_AES_256_GCM_SHA384, certificate verified". */
function lock(attempt) {
	if (!attempt.mx_host) return null;
	if (!attempt.tls) return h("span", { class: "tls open" }, "no TLS");
	const [version, cipher, ...verified] = attempt.tls.split(", ");
	return h("span", { class: "tls", title: cipher }, [version.replace("TLSv", "TLS "), ...verified].join(", "));
}

function server(attempt) {
	if (!attempt.mx_host) return attempt.decision ? "no server reached" : "simulated by the sandbox";
	const at = attempt.mx_address && attempt.mx_address !== attempt.mx_host ? ` (${attempt.mx_address})` : "";
	return h("span", { class: "mono" }, attempt.mx_host, h("span", { class: "quiet" }, at));
}

const ROUTES = { direct: "direct", relay: "by the relay" };
const SPEAKERS = { C: "we", S: "server", "*": "note" };

function dialogue(recipient, attempt) {
	if (!attempt.dialogue.length) return null;
	return h(
		"details",
		{ "data-key": `${recipient.id} ${attempt.number}` },
		h("summary", null, `SMTP dialogue, ${attempt.dialogue.length} lines`),
		h(
			"ol",
			{ class: "dialogue" },
			attempt.dialogue.map((line) =>
				h(
					"li",
					{ class: `says-${SPEAKERS[line.speaker]}` },
					h("span", { class: "at" }, `${line.ms} ms`),
					h("span", { class: "by" }, SPEAKERS[line.speaker]),
					h("span", { class: "text" }, line.text),
				),
			),
		),
	);
}

function tried(recipient, attempt) {
	return h(
		"li",
		{ class: outcome(attempt) },
		h(
			"p",
			{ class: "row" },
			h("b", null, `Attempt ${attempt.number}`),
			badge(outcome(attempt)),
			h("span", { class: "quiet small" }, when(attempt.started_at), `, took ${span(attempt.duration_ms)}`),
		),
		h("p", { class: "row small" }, server(attempt), lock(attempt), attempt.route && ROUTES[attempt.route]),
		attempt.smtp_response && h("p", { class: "reply mono" }, attempt.smtp_response),
		attempt.decision && h("p", { class: "small quiet" }, sentence(attempt.decision)),
		dialogue(recipient, attempt),
	);
}

function last(recipient, scheduledAt) {
	if (recipient.outcome === "scheduled")
		return h("li", { class: "next" }, h("p", null, "Next: attempt 1 at ", when(scheduledAt), ", ", ago(scheduledAt)));
	if (recipient.next_attempt_at) {
		const due = Date.parse(recipient.next_attempt_at) <= Date.now();
		return h(
			"li",
			{ class: "next" },
			h(
				"p",
				null,
				due
					? "Next: attempt as soon as possible"
					: [
							"Next: attempt ",
							String(recipient.attempt_count + 1),
							" at ",
							when(recipient.next_attempt_at),
							", ",
							ago(recipient.next_attempt_at),
						],
			),
		);
	}
	const stands = recipient.outcome;
	if (stands === "suppressed" || stands === "cancelled")
		return h("li", { class: stands }, h("p", { class: "row" }, badge(stands), recipient.last_smtp_response));
	if (recipient.late_bounce || recipient.complaint) return null; // what came back follows
	const end = {
		delivered: "Delivered: the server accepted the message.",
		bounced: "Final: no further attempts. The credit is returned.",
		failed: "Final: no further attempts.",
	}[recipient.status];
	return end ? h("li", { class: `end ${recipient.status}` }, h("p", { class: "quiet small" }, end)) : null;
}

/** The class of a refusal: "mailbox full". */
const classTag = (name) => name && h("span", { class: "tag" }, name.replace("_", " "));

/** A bounce received by mail after delivery. */
function bouncedLater(late) {
	if (!late) return null;
	return h(
		"li",
		{ class: "bounced" },
		h(
			"p",
			{ class: "row" },
			h("b", null, "Bounced by mail after delivery"),
			classTag(late.class),
			h("span", { class: "quiet small" }, when(late.at)),
		),
		h("p", { class: "reply mono" }, late.response),
	);
}

/** A spam complaint after delivery. */
function complained(complaint) {
	if (!complaint) return null;
	return h(
		"li",
		{ class: "complained" },
		h(
			"p",
			{ class: "row" },
			h("b", null, "Reported as spam by the recipient"),
			h("span", { class: "tag" }, complaint.kind),
			h("span", { class: "quiet small" }, when(complaint.at)),
		),
	);
}

/** The state in one sentence. A late bounce or complaint has its time in the time zone of the viewer. */
function standing(recipient) {
	if (recipient.outcome === "complained")
		return ["Complained: the recipient reported this message as spam at ", when(recipient.complaint.at), "."];
	if (recipient.outcome === "late_bounced")
		return ["Bounced by mail at ", when(recipient.late_bounce.at), ", after the server had accepted the message."];
	return sentence(recipient.explanation, true, recipient.next_attempt_at);
}

const answered = (attempt) => JSON.stringify([outcome(attempt), attempt.mx_host, attempt.smtp_response]);

/** The attempts. Of consecutive attempts with the same reply, only the last is expanded. */
function attempts(recipient) {
	const runs = [];
	for (const attempt of recipient.attempts) {
		if (runs.length && answered(runs.at(-1)[0]) === answered(attempt)) runs.at(-1).push(attempt);
		else runs.push([attempt]);
	}
	return runs.flatMap((run) => {
		if (run.length < 3) return run.map((each) => tried(recipient, each));
		const folded = run.slice(0, -1);
		return [
			h(
				"li",
				{ class: outcome(run[0]) },
				h(
					"details",
					{ "data-key": `${recipient.id} run ${run[0].number}` },
					h("summary", { class: "row" }, `Attempts ${run[0].number} to ${folded.at(-1).number}: same reply`),
					h(
						"ol",
						{ class: "timeline" },
						folded.map((each) => tried(recipient, each)),
					),
				),
			),
			tried(recipient, run.at(-1)),
		];
	});
}

/** One recipient; collapsed if there are many and it has no problem. `go` opens another page; optional. */
export function timeline(message, recipient, folded, go) {
	const status = recipient.outcome;
	const title = fragment(
		h("bdi", { class: "mono address" }, recipient.email),
		outcomeBadge(status),
		status !== "suppressed" && classTag(recipient.bounce_class),
	);
	const story = fragment(
		h("p", { class: `standing ${status}` }, standing(recipient)),
		isProblem(recipient) && advice(message, recipient, go),
		h(
			"ol",
			{ class: "timeline", "data-key": "story" },
			h(
				"li",
				{ class: "queued" },
				h(
					"p",
					{ class: "row" },
					h("b", null, "Accepted"),
					h(
						"span",
						{ class: "quiet small" },
						when(message.created_at),
						` by ${{ api: "the API", smtp: "SMTP", test: "a test" }[message.source]}`,
					),
				),
			),
			attempts(recipient),
			last(recipient, message.scheduled_at),
			bouncedLater(recipient.late_bounce),
			complained(recipient.complaint),
		),
	);
	const named = { class: "card recipient", "data-key": recipient.id };
	if (!folded) return h("article", named, h("h2", { class: "row" }, title), story);
	return h("details", named, h("summary", { class: "row" }, title), story);
}
