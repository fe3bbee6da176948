// One request of the request log, in full.
import { get } from "../api.js";
import { fragment, h, path, query } from "../dom.js";
import { code, copyButton, empty, facts, head, section } from "../pieces.js";
import { bytes } from "../bytes.js";
import { when } from "../time.js";
import { keyNames, status } from "./requests.js";

/** Indented, if the whole JSON is there. */
function indented(body) {
	try {
		return JSON.stringify(JSON.parse(body), null, 2);
	} catch {
		return body;
	}
}

export default async function request(page) {
	const [id] = page.params;
	const crumb = { href: "/dashboard/requests", title: "Requests" };
	const [{ requests }, names] = await Promise.all([
		get(query("/v1/requests", { q: id, limit: 10 }), page.signal),
		keyNames(page.signal),
	]);
	const found = requests.find((entry) => entry.request_id === id);
	if (!found)
		return fragment(
			head("Request", { crumb }),
			empty("This request is not in the log", "The log has the last 7 days. A new request appears within two seconds."),
		);
	return fragment(
		head("Request", { crumb, badge: status(found) }),
		h(
			"div",
			{ class: "card" },
			facts([
				found.error && ["Error", h("bdi", null, found.error), " ", found.code && h("code", null, found.code)],
				found.message_id && [
					"Message",
					h("a", { class: "mono break", href: path("/dashboard/messages", found.message_id) }, found.message_id),
				],
				["Time", when(found.at)],
				["Request", h("code", null, `${found.source}: ${found.route}`)],
				["Key", h("bdi", null, names.get(found.key) ?? found.key ?? "login")],
				["Client", h("bdi", { class: "mono" }, found.client)],
				["Size", bytes(found.size)],
				[
					"Request id",
					h("code", { class: "break" }, found.request_id),
					" ",
					copyButton(found.request_id, "request id"),
				],
			]),
		),
		section("Body", found.body ? code(indented(found.body), "the body") : h("p", { class: "quiet" }, "Not logged.")),
	);
}
