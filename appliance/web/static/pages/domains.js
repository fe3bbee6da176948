// The list of domains, and adding one.
import { post } from "../api.js";
import { fragment, h, may, path } from "../dom.js";
import { formDialog } from "../form.js";
import { shownName } from "../idn.js";
import { loader, paged } from "../lists.js";
import { button, empty, head, row } from "../pieces.js";
import { ago } from "../time.js";
import { added, dnsStates, standingBadge } from "./domain.js";

const COLUMNS = [
	{ title: "Domain", class: "half" },
	{ title: "Status", class: "side" },
	{ title: "DNS records" },
	{ title: "Last check", class: "side wide" },
];
const LOOK_EVERY = 30; // seconds

const listed = (each) => ({
	href: path("/dashboard/domains", each.name),
	id: each.name,
	cells: [
		h("span", { class: "mono break" }, h("bdi", null, shownName(each.name))),
		standingBadge(each),
		dnsStates(each.dns),
		ago(each.dns?.checked_at, "not yet"),
	],
});

export default async function domains(page) {
	const load = loader(page.signal, "/v1/domains", "domains");
	const first = await load();
	const ask = () =>
		formDialog("Add a domain", {
			about: "The part after the @ of your senders. Next, you publish its DNS records.",
			fields: [{ name: "domain", label: "Domain name", required: true, placeholder: "example.com", autofocus: true }],
			submit: "Add domain",
			send: ({ domain }) => post("/v1/domains", { domain }),
			done(made) {
				added.set(made.name, made);
				return page.go(path("/dashboard/domains", made.name));
			},
		});
	// Linked from the first steps; the dialog opens after this page is shown.
	if (page.query.has("add") && may("addDomain")) setTimeout(() => page.signal.aborted || ask());
	page.every(LOOK_EVERY, async () => {
		const [{ items }, { update }] = await Promise.all([load(), import("../update.js")]);
		for (const each of items) {
			const shown = document.querySelector(`tr[data-id="${CSS.escape(each.name)}"]`);
			if (shown) update(shown, [...row(COLUMNS, listed(each)).cells]);
		}
	});
	return fragment(
		head("Domains", {
			about: "Your sending domains. A subdomain is a separate domain.",
			actions: [button("Add a domain", ask, "primary", { needs: "addDomain" })],
		}),
		first.items.length
			? paged("Domains", COLUMNS, first, listed, load, "Load more")
			: empty(
					"No domain yet",
					may("addDomain")
						? "Add your sending domain: the part after the @. Next, you publish its DNS records."
						: "Only owners and developers can add domains.",
				),
	);
}
