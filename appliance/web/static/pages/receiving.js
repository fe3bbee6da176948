// The addresses and domains that receive mail, and adding one.
import { get, post } from "../api.js";
import { fragment, h, may, path } from "../dom.js";
import { formDialog } from "../form.js";
import { shownName } from "../idn.js";
import { loader, paged } from "../lists.js";
import { button, empty, head, notice } from "../pieces.js";
import { when } from "../time.js";

const HOME = "/dashboard/receiving";
const COLUMNS = [
	{ title: "Address or domain", lead: true },
	{ title: "Receives" },
	{ title: "Added", class: "side bare" },
];

/** What an address or a domain receives, in words. */
export const meaning = (address) =>
	address.includes("@") ? "this address and its plus-addresses" : "every address of the domain";

const listed = (each) => ({
	id: each.address,
	href: path(HOME, each.address),
	cells: [
		h("span", { class: "mono break" }, h("bdi", null, shownName(each.address))),
		meaning(each.address),
		h("span", { class: "quiet" }, when(each.created_at)),
	],
});

/** A reminder to subscribe the webhook; null if it gets received mail. */
async function reminder(signal) {
	const { webhook } = await get("/v1/webhook", signal).catch(() => ({ webhook: undefined }));
	if (webhook === undefined || (webhook?.enabled && webhook.events.includes("email.received"))) return null;
	return notice(
		"deferred",
		"No webhook gets received mail. Subscribe yours to email.received.",
		h("a", { class: "button", href: "/dashboard/webhook" }, "Webhook"),
	);
}

export default async function receiving(page) {
	const load = loader(page.signal, "/v1/inbound/addresses", "addresses");
	const [first, told] = await Promise.all([load(), reminder(page.signal)]);
	const ask = () =>
		formDialog("Add a receiving address", {
			about:
				"An address, or a domain for all its addresses: one of your verified domains, or a subdomain of one. " +
				"Next, you publish its MX record.",
			fields: [
				{
					name: "address",
					label: "Address or domain",
					required: true,
					placeholder: "in.example.com",
					hint: "Use a subdomain such as in.example.com: the MX record of a domain with mailboxes must stay as it is.",
					autofocus: true,
				},
			],
			submit: "Add address",
			send: ({ address }) => post("/v1/inbound/addresses", { address: address.trim() }),
			done: ({ address }) => page.go(path(HOME, address.address)),
		});
	return fragment(
		head("Receiving addresses", {
			crumb: { href: "/dashboard/received", title: "Received" },
			about: "Mail to them is stored and posted to your webhook.",
			actions: [button("Add a receiving address", ask, "primary", { needs: "addReceivingAddress" })],
		}),
		first.items.length > 0 && told,
		first.items.length
			? paged("Receiving addresses", COLUMNS, first, listed, load, "Load more")
			: empty(
					"No address receives mail",
					may("addReceivingAddress")
						? "Add an address or a domain. Next, you publish its MX record."
						: "Only owners and developers can add receiving addresses.",
				),
	);
}
