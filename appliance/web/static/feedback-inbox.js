// The feedback inbox: mail of strangers, shown as text only.
import { get } from "./api.js";
import { fragment, h, path } from "./dom.js";
import { errorText, facts } from "./pieces.js";
import { when } from "./time.js";

const RESULTS = {
	not_understood: "not a complaint",
	not_verified: "complaint not verified; nothing changed",
	kept: "to be read",
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

/** The mails, newest first; what is said when there are none. */
export function inbox(mails) {
	if (!mails.length)
		return h(
			"p",
			{ class: "quiet" },
			"Nothing to read. Verification mails of feedback loops, and mail to postmaster and abuse, appear here.",
		);
	return h("div", { class: "card" }, mails.map(mail));
}
