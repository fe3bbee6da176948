// The suppression list: search, release, import and export.
import { del, get, post, put } from "../api.js";
import { fragment, h, path, query, style, toast } from "../dom.js";
import { dialog, form } from "../form.js";
import { loader, paged } from "../lists.js";
import { button, empty, head, section } from "../pieces.js";
import { count, number, when } from "../time.js";

const ORIGINS = ["bounce", "late_bounce", "complaint", "unsubscribe", "manual", "import"];
const COLUMNS = [
	{ title: "Select", class: "side", needs: "removeSuppression" },
	{ title: "Address", lead: true },
	{ title: "Origin" },
	{ title: "Reason", class: "break second" },
	{ title: "Since", class: "side bare" },
	{ title: "Action", class: "side", needs: "removeSuppression" },
];

const words = (origin) => origin.replace("_", " ");
const remove = (each) => del(query(path("/v1/suppressions", each.address), { tag: each.tag, template: each.template }));

/** Tags with an unsubscribe link. */
function unsubscribeTags(page, tags) {
	const save = async (changed) => {
		await put("/v1/unsubscribe-tags", { tags: changed });
		await page.reload();
	};
	const add = form({
		inline: true,
		fields: [{ name: "tags", label: "Tag", required: true, placeholder: "newsletter", maxlength: 64 }],
		submit: "Add tag",
		send: (given) => save([...tags, given.tags]),
	});
	const listed = tags.map((tag) =>
		h(
			"p",
			{ class: "row" },
			h("code", { class: "break" }, tag),
			" ",
			button("Remove tag", () => save(tags.filter((each) => each !== tag)), "tiny", {
				"aria-label": `Remove the links for ${tag}`,
				needs: "saveUnsubscribeTags",
			}),
		),
	);
	return section(
		"Unsubscribe links",
		h(
			"p",
			{ class: "quiet" },
			"Messages to one recipient with one of these tags get a one-click unsubscribe link. ",
			"Templates have their own setting.",
		),
		listed,
		h("div", { class: "card", needs: "saveUnsubscribeTags" }, add),
	);
}

/** The search form; it is part of the URL. */
function search(page, wanted) {
	return form({
		inline: true,
		fields: [
			{ name: "q", label: "Search", value: wanted.q, placeholder: "address, domain or reason", maxlength: 254 },
			{
				name: "origin",
				label: "Origin",
				type: "select",
				value: wanted.origin,
				options: [["", "any"], ...ORIGINS.map((each) => [each, words(each)])],
			},
		],
		submit: "Search",
		send: ({ q, origin }) => page.go(query("/dashboard/suppressions", { q: q.trim(), origin })),
	});
}

/** The list, with bulk release of selected entries. */
function list(page, first, load) {
	const chosen = new Map(); // entries by checkbox
	const many = button("Release selected", async () => {
		const entries = [...chosen];
		for (const [at, [box, each]] of entries.entries()) {
			many.textContent = `Releasing ${number(at + 1)} of ${number(entries.length)}…`;
			await remove(each).catch((error) => {
				if (error.status !== 404) throw error;
			});
			chosen.delete(box);
		}
		toast(`${count(entries.length, "address", "addresses")} released`);
		await page.reload();
	});
	const tell = () => {
		many.textContent = chosen.size ? `Release ${count(chosen.size, "address", "addresses")}` : "Release selected";
		many.disabled = chosen.size === 0;
	};
	tell();
	const row = (each) => {
		const box = h("input", {
			type: "checkbox",
			"aria-label": `Select ${each.address}`,
			onchange: () => {
				if (box.checked) chosen.set(box, each);
				else chosen.delete(box);
				tell();
			},
		});
		return [
			box,
			h("bdi", { class: "mono break" }, each.address),
			words(each.origin),
			h("bdi", null, each.reason),
			when(each.created_at),
			button(
				"Release",
				async (made) => {
					await remove(each);
					toast(`${each.address} released`);
					const line = made.closest("tr");
					const near = line.nextElementSibling ?? line.previousElementSibling;
					chosen.delete(box);
					tell();
					if (!near) return page.reload();
					line.remove();
					near.querySelector("button").focus();
				},
				"tiny",
				{ "aria-label": `Release ${each.address}` },
			),
		];
	};
	const shown = h("div", null, paged("Suppressed addresses", COLUMNS, first, row, load, "Load more"));
	const all = button("Select all shown", () => {
		for (const box of shown.querySelectorAll("input[type=checkbox]:not(:checked)")) box.click();
	});
	return [h("div", { class: "row bulk", needs: "removeSuppression" }, all, many), shown];
}

const chooseFile = async (page) => (await import("../suppression-files.js")).importFile(page, dialog);

export default async function suppressions(page) {
	const wanted = { q: page.query.get("q") ?? "", origin: page.query.get("origin") ?? "" };
	const load = loader(page.signal, "/v1/suppressions", "suppressions", "after", wanted);
	const [first, { tags }] = await Promise.all([load(), get("/v1/unsubscribe-tags", page.signal), style("pages")]);
	const add = form({
		inline: true,
		fields: [
			{ name: "address", label: "Suppress an address", type: "email", required: true, placeholder: "ada@example.net" },
			{ name: "reason", label: "Reason", placeholder: "asked us to stop", maxlength: 200 },
		],
		submit: "Suppress address",
		async send({ address, reason }) {
			await post("/v1/suppressions", reason ? { address, reason } : { address });
			await page.reload();
		},
	});
	const searched = wanted.q || wanted.origin;
	const none = searched
		? empty(
				"No results",
				[
					"No address",
					wanted.origin && ` of the origin “${words(wanted.origin)}”`,
					wanted.q && ` with “${wanted.q}” in it or in its reason`,
					".",
				],
				h("a", { class: "button", href: "/dashboard/suppressions" }, "Show all"),
			)
		: empty("No address is suppressed", "An address is added when its server reports that the mailbox does not exist.");
	return fragment(
		head("Suppressions", {
			about: "You no longer send to these addresses. A message to one bounces immediately and costs nothing.",
			actions: [
				button("Import CSV", () => chooseFile(page), "", { needs: "importSuppressions" }),
				button("Export CSV", async (made) => (await import("../suppression-files.js")).exportFile(load, made)),
			],
		}),
		h("div", { class: "card", needs: "addSuppression" }, add),
		h("section", null, h("div", { class: "card" }, search(page, wanted))),
		h("section", null, first.items.length || first.next ? list(page, first, load) : none),
		unsubscribeTags(page, tags),
	);
}
