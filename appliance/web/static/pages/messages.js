// The list of messages: filters in the URL, new rows on top, older rows on request, actions on selected rows.
import { get } from "../api.js";
import { fragment, h, may, path, query } from "../dom.js";
import { older, stateBadge, wrongFilter } from "../lists.js";
import { asked, described, filterBar, read } from "../message-filters.js";
import { button, empty, head, row, table } from "../pieces.js";
import { firstMessageTabs } from "../snippets.js";
import { when } from "../time.js";

const SEARCHED = "recipients, senders, subjects, ids, tags, templates and server replies";
const PAGE = 50;
const COLUMNS = [
	{ title: "Select", class: "side pick", hidden: true, needs: "cancelEmail" },
	{ title: "To", class: "cut to", lead: true },
	{ title: "Subject", class: "cut second" },
	{ title: "From", class: "cut table-only" },
	{ title: "Status", class: "side" },
	{ title: "Accepted", class: "side bare" },
];
const PAGES = 20; // new messages to add at once; beyond that, the list reloads
const OWN = { api: "/v1/emails", home: "/dashboard/messages" }; // `page.of` has another account's messages
const TRIES = 40; // incomplete pages in a row that a search skips automatically

/** The status, and when a scheduled message goes out. */
const state = (message) =>
	h(
		"span",
		{ class: "state" },
		stateBadge(message),
		message.outcomes.scheduled && h("span", { class: "quiet" }, " ", when(message.scheduled_at)),
	);

const columns = (own) => (own ? COLUMNS : COLUMNS.slice(1));

/** An address that breaks before its domain if it must. */
function breaking(address) {
	const at = address.lastIndexOf("@");
	return at < 1 ? address : [address.slice(0, at), h("wbr"), address.slice(at)];
}

const listed = (home, own) => (message) => {
	const [first] = message.recipients;
	const more = message.recipient_count - 1;
	const to = fragment(
		h("bdi", { class: "mono" }, breaking(first?.email ?? "–")),
		more > 0 && h("span", { class: "quiet" }, ` and ${more} more`),
	);
	const sender = /<([^<>]+)>$/.exec(message.from)?.[1] ?? message.from;
	const { source, stream, tags } = message;
	const labels = [source !== "api" && source, stream !== "transactional" && stream, ...tags].filter(Boolean);
	return row(columns(own), {
		id: message.id,
		title: [first?.email, message.subject, `From: ${sender}`, labels.join(", ")].filter(Boolean).join("\n"),
		href: path(home, message.id),
		link: own ? 1 : 0,
		cells: [
			...(own ? [h("input", { type: "checkbox", "aria-label": `Select ${message.subject || message.id}` })] : []),
			to,
			fragment(
				h("bdi", { class: !message.subject && "quiet" }, message.subject || "(no subject)"),
				labels.map((label) => h("bdi", { class: "tag" }, label)),
			),
			h("bdi", { class: "mono quiet" }, sender),
			state(message),
			h("span", { class: "quiet" }, when(message.created_at)),
		],
	});
};

/** One page of messages. A search without results continues automatically. */
async function find(api, filters, before, signal) {
	let found = [];
	let next = before;
	for (let tries = 0; tries < TRIES; tries += 1) {
		const part = await get(query(api, { ...asked(filters), limit: PAGE, before: next }), signal);
		found = found.concat(part.emails);
		next = part.next;
		if (!next || found.length >= PAGE / 2) break;
	}
	return { emails: found, next };
}

async function nothing(page, filters, home) {
	if (Object.keys(filters).length)
		return empty(
			filters.q ? `No results for “${filters.q}”` : "No results for these filters",
			`Searched: ${described(filters)}. Words match from their start, in ${SEARCHED}.`,
			/^\S{2,}$/.test(filters.q ?? "") && [
				h(
					"a",
					{ class: "button", href: query(home, { ...filters, q: "", address: filters.q }) },
					`Search inside addresses for “${filters.q}”`,
				),
				" ",
			],
			h("a", { class: "button", href: home }, "Show all messages"),
		);
	if (page.of) return empty("No messages", "This account has no stored messages.");
	const { domains } = await get("/v1/domains?limit=100", page.signal);
	const domain = (domains.find((each) => each.status !== "pending") ?? domains[0])?.name ?? "your-domain.example";
	return empty(
		"No messages yet",
		`${may("sendTestEmail") ? "Send a test, or run" : "Run"} one of these, with your key as $KEY.`,
		h(
			"p",
			null,
			button("Send a test", () => page.sendTest(), "primary", { needs: "sendTestEmail" }),
			" ",
			h("a", { class: "button", href: "/dashboard/keys", needs: "createApiKey" }, "Create a key"),
		),
		firstMessageTabs(domain),
	);
}

/**
 * Replace the rows between `above` and below another id with `emails`: update changed rows, remove missing ones.
 * Returns rows that are newer than all others.
 */
function merge(body, emails, below, above, toRow) {
	const inside = [...body.rows].filter((each) => !(below <= each.dataset.id) && !(each.dataset.id < above));
	const known = new Map(inside.map((each) => [each.dataset.id, each]));
	const newest = body.rows[0]?.dataset.id ?? "";
	const fresh = [];
	for (const message of emails) {
		const old = known.get(message.id);
		known.delete(message.id);
		if (old) {
			const shown = old.querySelector(".state");
			const now = state(message);
			if (!shown.isEqualNode(now)) shown.replaceWith(now);
		} else if (message.id > newest) fresh.push(message);
		else body.insertBefore(toRow(message), [...body.rows].find((each) => each.dataset.id < message.id) ?? null);
	}
	for (const gone of known.values()) if (!gone.contains(document.activeElement)) gone.remove();
	return fresh;
}

/** Add new rows on top: at once, or on a click if the reader has scrolled down. */
function show(body, fresh, waiting, toRow) {
	const put = () => {
		const known = body.rows[0]?.dataset.id ?? "";
		const rows = fresh.filter((each) => each.id > known).map(toRow);
		for (const each of rows) each.classList.add("fresh");
		body.prepend(...rows);
		waiting.replaceChildren();
	};
	if (!fresh.length) return;
	if (scrollY < 200) put();
	else
		waiting.replaceChildren(
			h(
				"button",
				{
					type: "button",
					class: "primary",
					onclick: () => {
						put();
						scrollTo({ top: 0 });
					},
				},
				`${fresh.length} new`,
			),
		);
}

let left = null; // the last list: its URL, rows and cursor

export default async function messages(page) {
	const { api, home, account } = page.of ?? OWN;
	const own = !account;
	const toRow = listed(home, own);
	const filters = read(page.query);
	// Going back shows the loaded rows and fetches new ones.
	const kept = page.back && left?.href === location.href ? left : null;
	const compose = async () => (await import("../compose.js")).compose(page);
	const actions = [
		button("Send a test", () => page.sendTest(), "", { needs: "sendTestEmail" }),
		button("New message", compose, "primary", { needs: "sendTestEmail" }),
	];
	const exported = button("Export CSV", async () => (await import("../message-actions.js")).exportFile(asked(filters)));
	const listing = kept ? Promise.resolve(kept) : find(api, filters, undefined, page.signal);
	const { parts, recount } = filterBar(page, filters, home, own, own ? [exported] : [], listing);
	const top = fragment(account ? page.of.head() : head("Messages", { actions }), parts);
	let first;
	try {
		first = await listing;
	} catch (error) {
		return fragment(top, wrongFilter(error));
	}
	const list = table("Messages, newest first", columns(own), [], "cards");
	const body = list.querySelector("tbody");
	body.append(...(kept?.rows ?? first.emails.map(toRow)));
	const waiting = h("div", { class: "waiting", "aria-live": "polite" });
	const place = h("div", null, body.rows.length || first.next ? list : await nothing(page, filters, home));
	let { next } = first;
	let checked = 0; // rows from the top that the last rounds checked
	/** Refresh the page of messages before an id, or the newest. Returns where it ends. */
	const check = async (before) => {
		const part = await get(query(api, { ...asked(filters), limit: PAGE, before }), page.signal);
		const fresh = merge(body, part.emails, before, part.next ?? "", toRow);
		return { fresh, end: part.next };
	};
	const renew = async () => {
		const newest = body.rows[0]?.dataset.id ?? "";
		let { fresh, end } = await check(undefined);
		for (let pages = 1; end && end > newest && newest && pages < PAGES; pages += 1) {
			const more = await check(end);
			fresh = [...fresh, ...more.fresh];
			end = more.end;
		}
		if (end && end > newest && newest) return page.reload(); // too many to walk through
		if (fresh.length && !list.isConnected) place.replaceChildren(list);
		if (fresh.length) recount();
		show(body, fresh, waiting, toRow);
		// Rows further down, one page per round.
		checked = checked + PAGE < body.rows.length ? checked + PAGE : 0;
		if (checked) await check(body.rows[checked - 1].dataset.id);
	};
	// An administrator's read is logged: do it once, not on every refresh.
	const bulk = h("div");
	if (own) {
		recount();
		if (may("cancelEmail"))
			body.addEventListener("change", async () => {
				if (bulk.firstChild) return;
				const { selectionBar } = await import("../message-actions.js");
				if (!bulk.firstChild) bulk.append(selectionBar(body, renew));
			});
		if (kept) renew().catch(() => {});
		page.every(2, renew);
	}
	const rest = older(next, async (cursor) => {
		const part = await find(api, filters, cursor, page.signal);
		body.append(...part.emails.map(toRow));
		next = part.next;
		return next;
	});
	const { href } = location;
	page.signal.addEventListener("abort", () => (left = { href, rows: [...body.rows], next }));
	return fragment(top, bulk, waiting, place, rest);
}
