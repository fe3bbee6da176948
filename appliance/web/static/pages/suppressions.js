// The suppression list: search, add, release with undo, import and export.
import { del, get, post, put } from "../api.js";
import { fragment, h, path, query, toast } from "../dom.js";
import { dialog, form, formDialog } from "../form.js";
import { loader, paged, wrongFilter } from "../lists.js";
import { button, empty, head, section } from "../pieces.js";
import { restore } from "../problems.js";
import { count, number, when } from "../time.js";
import { chip, toolbar } from "../toolbar.js";

const HOME = "/dashboard/suppressions";
const ORIGINS = ["bounce", "late_bounce", "complaint", "unsubscribe", "manual", "import"];
const COLUMNS = [
	{ title: "Select", class: "side pick", hidden: true, needs: "removeSuppression" },
	{ title: "Address", class: "cut to", lead: true },
	{ title: "Origin", class: "side" },
	{ title: "Reason", class: "cut second full" },
	{ title: "Since", class: "side bare" },
	{ title: "Action", class: "side", needs: "removeSuppression" },
];

const words = (origin) => origin.replace("_", " ");
const add = ({ address, reason }) => post("/v1/suppressions", reason ? { address, reason } : { address });
const remove = (each) =>
	del(query(path("/v1/suppressions", each.address), { tag: each.tag, template: each.template, stream: each.stream }));

/** Say what was released. An unsubscription cannot be undone: only the recipient can repeat it. */
function released(page, entries, text) {
	const undo = async () => {
		for (const each of entries) await restore(each);
		await page.reload();
	};
	toast(text, entries.some((each) => each.tag || each.template || each.stream) ? undefined : undo);
}

function suppress(page) {
	formDialog("Suppress an address", {
		about: "You no longer send to it. The server skips it as a recipient, which costs nothing.",
		fields: [
			{
				name: "address",
				label: "Address",
				type: "email",
				required: true,
				placeholder: "ada@example.net",
				autofocus: true,
			},
			{ name: "reason", label: "Reason", placeholder: "asked us to stop", maxlength: 200 },
		],
		submit: "Suppress address",
		send: add,
		async done(made) {
			await page.reload();
			toast(`${made.address} suppressed`, async () => {
				await remove(made);
				await page.reload();
			});
		},
	});
}

/** Tags with an unsubscribe link. */
function unsubscribeTags(page, tags) {
	// Another window may have changed the tags meanwhile.
	const save = async (change) => {
		const { tags: current } = await get("/v1/unsubscribe-tags");
		await put("/v1/unsubscribe-tags", { tags: change(current) });
		await page.reload();
	};
	const ask = () =>
		formDialog("Add a tag", {
			about: "Messages to one recipient with this tag get a one-click unsubscribe link.",
			fields: [
				{ name: "tags", label: "Tag", required: true, placeholder: "newsletter", maxlength: 64, autofocus: true },
			],
			submit: "Add tag",
			send: (values) => save((current) => [...current, values.tags]),
		});
	const without = async (tag) => {
		await save((current) => current.filter((each) => each !== tag));
		toast(`Messages with the tag ${tag} get no more links`, () => save((current) => [...current, tag]));
	};
	const listed = tags.map((tag) =>
		h(
			"p",
			{ class: "row" },
			h("code", { class: "break" }, tag),
			" ",
			button("Remove tag", () => without(tag), "tiny", {
				"aria-label": `Remove tag ${tag}`,
				needs: "saveUnsubscribeTags",
			}),
		),
	);
	return section(
		"Unsubscribe links",
		h(
			"div",
			{ class: "card stack" },
			h(
				"p",
				{ class: "quiet" },
				"Messages to one recipient with one of these tags get a one-click unsubscribe link. ",
				"Templates have their own setting.",
			),
			listed,
			button("Add a tag", ask, "", { needs: "saveUnsubscribeTags" }),
		),
	);
}

/** The search and the filter by origin; they are part of the URL. */
function search(page, wanted) {
	const field = form({
		inline: true,
		kind: "",
		fields: [{ name: "q", label: "Search", value: wanted.q, placeholder: "address, domain or reason", maxlength: 254 }],
		submit: "Search",
		send: ({ q }) => page.go(query(HOME, { ...wanted, q: q.trim() })),
	});
	const origins = ORIGINS.map((origin) => {
		const current = origin === wanted.origin;
		return chip(words(origin), { href: query(HOME, { ...wanted, origin: current ? "" : origin }), current });
	});
	const stream = wanted.stream && chip(`Stream: ${wanted.stream}`, { remove: query(HOME, { ...wanted, stream: "" }) });
	return fragment(toolbar({ search: field }), h("div", { class: "row" }, stream, origins));
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
		await page.reload();
		released(
			page,
			entries.map(([, each]) => each),
			`${count(entries.length, "address", "addresses")} released`,
		);
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
					released(page, [each], `${each.address} released`);
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
	const all = button(
		"Select all shown",
		() => {
			for (const box of shown.querySelectorAll("input[type=checkbox]:not(:checked)")) box.click();
		},
		"tiny",
	);
	many.classList.add("tiny");
	return [h("div", { class: "toolbar bulk", needs: "removeSuppression" }, all, many), shown];
}

const files = () => import("../suppression-files.js");

export default async function suppressions(page) {
	const wanted = Object.fromEntries(["q", "origin", "stream"].map((name) => [name, page.query.get(name) ?? ""]));
	const load = loader(page.signal, "/v1/suppressions", "suppressions", "after", wanted);
	const [first, { tags }] = await Promise.all([load().catch(wrongFilter), get("/v1/unsubscribe-tags", page.signal)]);
	const searched = wanted.q || wanted.origin || wanted.stream;
	const nothing = searched
		? empty(
				"No results",
				[
					"No address",
					wanted.origin && ` of the origin “${words(wanted.origin)}”`,
					wanted.stream && ` that has unsubscribed from the stream ${wanted.stream}`,
					wanted.q && ` with “${wanted.q}” in it or in its reason`,
					".",
				],
				h("a", { class: "button", href: HOME }, "Show all"),
			)
		: empty("No address is suppressed", "An address is added when its server reports that the mailbox does not exist.");
	const found = () => (first.items.length || first.next ? list(page, first, load) : nothing);
	const exported = button("Export CSV", async (made) => (await files()).exportFile(load, made));
	return fragment(
		head("Suppressions", {
			about: "You no longer send to these addresses. The server skips them as recipients, which costs nothing.",
			actions: [
				button("Import CSV", async () => (await files()).importFile(page, dialog), "", { needs: "importSuppressions" }),
				exported,
				button("Suppress an address", () => suppress(page), "primary", { needs: "addSuppression" }),
			],
		}),
		(searched || first.items.length > 0) && search(page, wanted),
		first.items ? found() : first,
		unsubscribeTags(page, tags),
	);
}
