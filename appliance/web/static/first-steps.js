// First steps of a new account: domain, DNS records, key, message.
import { get } from "./api.js";
import { h, path } from "./dom.js";
import { button, section } from "./basics.js";

function step(done, title, text, action) {
	return h(
		"li",
		{ class: done ? "done" : "" },
		h("span", { class: "tick" }, done ? "✓" : "", h("span", { class: "gone" }, done ? "done" : "to do")),
		h("div", null, h("h3", null, title), !done && h("p", { class: "quiet small" }, text)),
		!done && action,
	);
}

/** The steps; the next one has the primary button. Null when all are done. */
export async function firstSteps(page) {
	const [{ emails }, { domains }, { api_keys: keys }, { smtp_credentials: credentials }] = await Promise.all(
		["/v1/emails?limit=1", "/v1/domains?limit=100", "/v1/api-keys?limit=1", "/v1/smtp-credentials?limit=1"].map(
			(each) => get(each, page.signal),
		),
	);
	const usable = domains.some((each) => each.status !== "pending");
	const pending = domains.find((each) => each.status !== "verified");
	// An operator may allow a domain before its records are checked.
	const published = domains.some((each) => each.status === "verified" || each.dns?.dkim === "ok");
	const keyed = keys.length + credentials.length > 0;
	if (emails.length && usable && keyed) return null;
	const link = (href, text) => h("a", { class: "button", href }, text);
	const made = section(
		"First steps",
		h(
			"ol",
			{ class: "card steps" },
			step(
				domains.length > 0,
				"Add your sending domain",
				"You send from addresses of this domain.",
				link("/dashboard/domains?add", "Add a domain"),
			),
			step(
				published,
				"Publish its DNS records",
				"Receivers check these records. We check them too and show what is missing.",
				link(pending ? path("/dashboard/domains", pending.name) : "/dashboard/domains", "Show the records"),
			),
			step(
				keyed,
				"Create an API key or an SMTP credential",
				"Your application sends with it.",
				link("/dashboard/keys", "Create one"),
			),
			step(
				emails.length > 0,
				"Send a test",
				"Send a message to yourself and watch it arrive.",
				button("Send a test", () => page.sendTest()),
			),
		),
	);
	made.querySelector("li:not(.done) :is(a, button)")?.classList.add("primary");
	return made;
}
