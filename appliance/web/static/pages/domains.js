// The list of domains, and adding one.
import { post } from "../api.js";
import { fragment, h, may, path, style } from "../dom.js";
import { form } from "../form.js";
import { loader, paged } from "../lists.js";
import { badge, empty, head, row } from "../pieces.js";
import { ago } from "../time.js";
import { added, dnsStates } from "./domain.js";

const COLUMNS = [
	{ title: "Domain" },
	{ title: "Status", class: "side" },
	{ title: "DNS records" },
	{ title: "Last check", class: "side wide" },
];
const LOOK_EVERY = 30; // seconds

/** A domain that may send, although DNS lacks a record that receivers check. */
const isBroken = ({ status, dns }) =>
	status !== "pending" && ["dkim", "spf"].some((name) => ["missing", "differs"].includes(dns?.[name]));

const listed = (each) => ({
	href: path("/dashboard/domains", each.name),
	id: each.name,
	cells: [
		h("span", { class: "mono break" }, h("bdi", null, each.name)),
		isBroken(each) ? badge("bounced", "DNS broken") : badge(each.status),
		dnsStates(each.dns),
		ago(each.dns?.checked_at, "not yet"),
	],
});

export default async function domains(page) {
	const load = loader(page.signal, "/v1/domains", "domains");
	const [first] = await Promise.all([load(), style("pages")]);
	const add = form({
		inline: true,
		fields: [{ name: "domain", label: "Add a domain", required: true, placeholder: "example.com" }],
		submit: "Add domain",
		async send({ domain }) {
			const made = await post("/v1/domains", { domain });
			added.set(made.name, made);
			await page.go(path("/dashboard/domains", made.name));
		},
	});
	page.every(LOOK_EVERY, async () => {
		const [{ items }, { update }] = await Promise.all([load(), import("../update.js")]);
		for (const each of items) {
			const shown = document.querySelector(`tr[data-id="${CSS.escape(each.name)}"]`);
			if (shown) update(shown, [...row(COLUMNS, listed(each)).cells]);
		}
	});
	return fragment(
		head("Domains", { about: "Your sending domains. A subdomain is a separate domain." }),
		h("div", { class: "card", needs: "addDomain" }, add),
		h(
			"section",
			null,
			first.items.length
				? paged("Domains", COLUMNS, first, listed, load, "Load more")
				: empty(
						"No domain yet",
						may("addDomain")
							? "Add your sending domain: the part after the @. Next, you publish its DNS records."
							: "Only owners and developers can add domains.",
					),
		),
	);
}
