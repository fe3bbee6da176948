// The feedback inbox: mail from strangers, shown only as text.
import { get } from "./api.js";
import { fragment, h, path } from "./dom.js";
import { errorText, facts } from "./pieces.js";
import { when } from "./time.js";

const RESULTS = {
	not_understood: "not a complaint",
	not_verified: "unverified complaint, ignored",
	kept: "to read",
	forwarded: "forwarded to the operator",
};

function mail(each) {
	const content = h("pre", { class: "box", tabindex: "0" }, "Loading…");
	let isRead = false;
	async function read() {
		if (isRead) return;
		isRead = true;
		try {
			const found = await get(path("/v1/feedback/inbox", each.id));
			content.replaceChildren(fragment(found.text || found.source));
		} catch (error) {
			isRead = false;
			content.replaceChildren(errorText(error));
		}
	}
	return h(
		"details",
		{ class: "post", "data-key": each.id, ontoggle: read },
		h(
			"summary",
			{ class: "row" },
			h("bdi", { class: "break lead" }, each.subject || "(no subject)"),
			h("span", { class: "mono quiet small" }, each.address),
			h("span", { class: "quiet small" }, when(each.received_at)),
			h("span", { class: "quiet small" }, RESULTS[each.result] ?? each.result),
		),
		h("div", { class: "stack" }, facts([["From", h("bdi", { class: "break" }, each.sender)]]), content),
	);
}

/** The messages, newest first, or an explanation if the inbox is empty. */
export function inbox(mails) {
	if (!mails.length)
		return h(
			"p",
			{ class: "quiet" },
			"No messages. Feedback-loop verification mail and mail to postmaster and abuse appear here.",
		);
	return h("div", { class: "card" }, mails.map(mail));
}
