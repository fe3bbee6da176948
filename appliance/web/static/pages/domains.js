// The list of domains, and adding one.
import { post } from "../api.js";
import { fragment, h, may, path } from "../dom.js";
import { form } from "../form.js";
import { loader, paged } from "../lists.js";
import { badge, empty, head } from "../pieces.js";
import { when } from "../time.js";
import { added } from "./domain.js";

const COLUMNS = [
	{ title: "Domain" },
	{ title: "Status" },
	{ title: "Added", class: "side" },
	{ title: "Verified", class: "side wide" },
];

const listed = (each) => ({
	href: path("/dashboard/domains", each.name),
	cells: [h("span", { class: "mono" }, each.name), badge(each.status), when(each.created_at), when(each.verified_at)],
});

export default async function domains(page) {
	const load = loader(page.signal, "/v1/domains", "domains");
	const first = await load();
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
	return fragment(
		head("Domains", { about: "The domains that you send from. A subdomain is a domain of its own." }),
		h("div", { class: "card", needs: "addDomain" }, add),
		h(
			"section",
			null,
			first.items.length
				? paged("Domains", COLUMNS, first, listed, load, "Load more")
				: empty(
						"No domain yet",
						may("addDomain")
							? "Add the one that stands behind the @ of your sender. Next you see the DNS records to publish for it."
							: "An owner or a developer of the account adds them.",
					),
		),
	);
}
