// The suppression list: addresses that mail is no longer sent to.
import { del, post } from "../api.js";
import { fragment, h, path, toast } from "../dom.js";
import { form } from "../form.js";
import { loader, paged } from "../lists.js";
import { button, empty, head } from "../pieces.js";
import { when } from "../time.js";

const COLUMNS = [
	{ title: "Address" },
	{ title: "Origin" },
	{ title: "Reason", class: "break" },
	{ title: "Since", class: "side" },
	{ title: "", class: "side" },
];

export default async function suppressions(page) {
	const load = loader(page.signal, "/v1/suppressions", "suppressions");
	const first = await load();
	const listed = (each) => [
		h("bdi", { class: "mono break" }, each.address),
		each.origin.replace("_", " "),
		h("bdi", null, each.reason),
		when(each.created_at),
		button(
			"Release",
			async (made) => {
				await del(path("/v1/suppressions", each.address));
				toast(`${each.address} may be sent to again`);
				const row = made.closest("tr");
				const near = row.nextElementSibling ?? row.previousElementSibling;
				if (!near) return page.reload();
				row.remove();
				near.querySelector("button").focus();
			},
			"tiny",
			{ "aria-label": `Release ${each.address}` },
		),
	];
	const add = form({
		inline: true,
		fields: [
			{ name: "address", label: "Suppress an address", type: "email", required: true, placeholder: "ada@example.net" },
			{ name: "reason", label: "Reason", placeholder: "asked us to stop", maxlength: 200 },
		],
		submit: "Suppress",
		async send({ address, reason }) {
			await post("/v1/suppressions", reason ? { address, reason } : { address });
			await page.reload();
		},
	});
	return fragment(
		head("Suppressions", {
			about: "Addresses that you no longer send to. A message to one of them bounces at once and costs nothing.",
		}),
		h("div", { class: "card" }, add),
		h(
			"section",
			null,
			first.items.length
				? paged("Suppressed addresses", COLUMNS, first, listed, load, "Load more")
				: empty("No address is suppressed", "An address is added when its server says that there is no such user."),
		),
	);
}
