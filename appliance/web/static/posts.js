// Webhook deliveries: request, response and replay.
import { get, post } from "./api.js";
import { h, path, query, toast } from "./dom.js";
import { badge, button, copyButton, errorText, facts } from "./pieces.js";
import { span, when } from "./time.js";

const clock = (iso) => new Date(iso).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

const answered = (each) =>
	each.response_status ? `responded ${each.response_status}` : each.error ? "no response" : "";

/** The words for a status, in badges and filters. A pending delivery is queued, or retrying after an attempt. */
export const STATUSES = { success: "delivered", failed: "failed", pending: "queued or retrying" };

/** Its status in words: `retrying (502, next 17:17)`. */
function state(each) {
	if (each.status !== "pending") return badge(each.status, STATUSES[each.status]);
	if (!each.attempt) return badge("queued");
	const next = each.next_attempt_at && `next ${clock(each.next_attempt_at)}`;
	const why = [each.response_status ?? "no response", next].filter(Boolean).join(", ");
	return badge("pending", `retrying (${why})`);
}

function pretty(text) {
	try {
		return JSON.stringify(JSON.parse(text), null, 2);
	} catch {
		return text; // truncated or not JSON: show it unchanged
	}
}

/** The recipient address, from the stored part of the body; of received mail the first one. */
function recipientOf(each) {
	try {
		const { envelope, to } = JSON.parse(each.request_body).data;
		return envelope ? envelope.to[0] : to;
	} catch {
		return /"to": ?\[?"([^"\\]{1,254})"/.exec(each.request_body ?? "")?.[1];
	}
}

/** The page of the message that a delivery is about: one that was sent, or received. */
const messagePath = (id) => path(id.startsWith("inb_") ? "/dashboard/received" : "/dashboard/messages", id);

/** The deliveries of a message, or a sentence without any; `again` is called after a replay. */
export async function postsOf(id, signal, again, nothing = "No webhook deliveries for this message.") {
	try {
		const { deliveries } = await get(query("/v1/webhook/deliveries", { message_id: id, limit: 100 }), signal);
		if (!deliveries.length) return [h("p", { class: "quiet" }, nothing)];
		return [
			h("h2", { class: "gone" }, "Webhook deliveries"),
			h(
				"div",
				{ class: "card posts" },
				deliveries.map((each) => shownPost(each, again)),
			),
		];
	} catch (error) {
		return [error.status === 404 ? h("p", { class: "quiet" }, "This server has webhooks disabled.") : errorText(error)];
	}
}

/** One delivery, collapsible; `again` is called after a replay. */
export function shownPost(each, again) {
	return h(
		"details",
		{ class: "post", "data-key": each.id },
		h(
			"summary",
			{ class: "row" },
			h("bdi", { class: "mono break lead" }, recipientOf(each) ?? each.type),
			state(each),
			recipientOf(each) && h("span", { class: "mono quiet small" }, each.type),
			h("span", { class: "quiet small" }, when(each.attempted_at ?? each.created_at)),
			each.next_attempt_at && h("span", { class: "quiet small" }, "next attempt ", when(each.next_attempt_at)),
			h(
				"span",
				{ class: "quiet small" },
				[answered(each), each.trigger !== "event" && each.trigger, `attempt ${each.attempt} of ${each.max_attempts}`]
					.filter(Boolean)
					.join(" · "),
			),
		),
		h(
			"div",
			{ class: "stack" },
			facts([
				recipientOf(each) && ["Recipient", h("bdi", { class: "mono break" }, recipientOf(each))],
				["Event", h("code", null, each.event_id ?? "–"), each.event_id && copyButton(each.event_id, "event id")],
				each.message_id && ["Message", h("a", { class: "mono", href: messagePath(each.message_id) }, each.message_id)],
				["URL", h("code", { class: "break" }, each.url)],
				each.duration_ms !== null && ["Took", span(each.duration_ms)],
				each.next_attempt_at && ["Next attempt", when(each.next_attempt_at)],
				each.error && ["Error", each.error],
			]),
			h("h3", null, "Request"),
			h("pre", { class: "box", tabindex: "0" }, pretty(each.request_body ?? "")),
			h("h3", null, "Response"),
			h("pre", { class: "box", tabindex: "0" }, each.response_body || "(empty)"),
			h(
				"div",
				{ class: "row" },
				button(
					"Replay",
					async () => {
						await post(`${path("/v1/webhook/deliveries", each.id)}/replay`);
						toast("Replayed with the same event id");
						await again();
					},
					"",
					{ needs: "replayWebhookDelivery" },
				),
			),
		),
	);
}
