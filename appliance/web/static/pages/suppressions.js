// The suppression list: addresses that mail is no longer sent to.
import { del, get, post, put } from "../api.js";
import { fragment, h, path, query, toast } from "../dom.js";
import { form } from "../form.js";
import { loader, paged } from "../lists.js";
import { button, empty, head, section } from "../pieces.js";
import { when } from "../time.js";

const COLUMNS = [
	{ title: "Address" },
	{ title: "Origin" },
	{ title: "Reason", class: "break" },
	{ title: "Since", class: "side" },
	{ title: "", class: "side" },
];

/** The tags whose messages get a link to unsubscribe, to be added and removed. */
function unsubscribeTags(page, tags) {
	const save = async (changed) => {
		await put("/v1/unsubscribe-tags", { tags: changed });
		await page.reload();
	};
	const add = form({
		inline: true,
		fields: [{ name: "tags", label: "Tag", required: true, placeholder: "newsletter", maxlength: 64 }],
		submit: "Add links",
		send: (given) => save([...tags, given.tags]),
	});
	const listed = tags.map((tag) =>
		h(
			"p",
			{ class: "row" },
			h("code", { class: "break" }, tag),
			" ",
			button("Remove", () => save(tags.filter((each) => each !== tag)), "tiny", {
				"aria-label": `No links for ${tag}`,
			}),
		),
	);
	return section(
		"Links to unsubscribe",
		h(
			"p",
			{ class: "quiet" },
			"Messages to one recipient with one of these tags get a link to unsubscribe by one click. ",
			"A template has its own box to tick.",
		),
		listed,
		h("div", { class: "card" }, add),
	);
}

export default async function suppressions(page) {
	const load = loader(page.signal, "/v1/suppressions", "suppressions");
	const [first, { tags }] = await Promise.all([load(), get("/v1/unsubscribe-tags", page.signal)]);
	const listed = (each) => [
		h("bdi", { class: "mono break" }, each.address),
		each.origin.replace("_", " "),
		h("bdi", null, each.reason),
		when(each.created_at),
		button(
			"Release",
			async (made) => {
				await del(query(path("/v1/suppressions", each.address), { tag: each.tag, template: each.template }));
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
		unsubscribeTags(page, tags),
	);
}
