// The request log: submissions by API and SMTP, accepted or refused.
import { get } from "../api.js";
import { fragment, h, path, query } from "../dom.js";
import { form } from "../form.js";
import { loader, paged, wrongFilter } from "../lists.js";
import { badge, empty, head } from "../pieces.js";
import { when } from "../time.js";

const COLUMNS = [
	{ title: "When", class: "side" },
	{ title: "Status", class: "side" },
	{ title: "Request", class: "side wide" },
	{ title: "Message or error", class: "cut", lead: true },
	{ title: "Key", class: "cut wide" },
	{ title: "From", class: "side wide" },
];
const HOME = "/dashboard/requests";

/** Names of API keys by id, and of SMTP credentials by username. */
export async function keyNames(signal) {
	const lists = [get("/v1/api-keys", signal), get("/v1/smtp-credentials", signal)].map((list) =>
		list.catch(() => ({})),
	);
	const [{ api_keys: keys = [] }, { smtp_credentials: credentials = [] }] = await Promise.all(lists);
	return new Map([
		...keys.map((key) => [key.id, key.name || `…${key.hint}`]),
		...credentials.map((credential) => [credential.username, credential.name || credential.username]),
	]);
}

export const status = (request) =>
	badge(request.status < 300 ? "delivered" : request.status < 500 ? "bounced" : "failed", String(request.status));

const listed = (names) => (request) => ({
	id: request.request_id,
	href: path(HOME, request.request_id),
	cells: [
		when(request.at),
		status(request),
		h("code", null, request.route),
		h("bdi", null, request.error ?? request.message_id),
		h("bdi", null, names.get(request.key) ?? request.key ?? "login"),
		h("bdi", { class: "mono" }, request.client),
	],
});

export default async function requests(page) {
	const filters = Object.fromEntries(["status", "key", "q"].map((name) => [name, page.query.get(name) ?? ""]));
	const load = loader(page.signal, "/v1/requests", "requests", "before", { ...filters, limit: 50 });
	const [first, names] = await Promise.all([load().catch(wrongFilter), keyNames(page.signal)]);
	const filter = form({
		inline: true,
		fields: [
			{ name: "q", label: "Search", value: filters.q, placeholder: "Address, id or error", maxlength: 200 },
			{
				name: "status",
				label: "Status",
				type: "select",
				value: filters.status,
				options: [
					["", "any"],
					["accepted", "accepted"],
					["refused", "refused"],
				],
			},
			{ name: "key", label: "Key", type: "select", value: filters.key, options: [["", "any"], ...names] },
		],
		submit: "Filter requests",
		send: ({ q, ...others }) => page.go(query(HOME, { q: q.trim(), ...others })),
	});
	const narrowed = Object.values(filters).some(Boolean);
	const list = () =>
		first.items.length || first.next
			? paged("Requests, newest first", COLUMNS, first, listed(names), load)
			: empty(
					narrowed ? "No request matches" : "No requests yet",
					narrowed
						? "Try fewer filters."
						: "Send a message by API or SMTP. Its request appears here within two seconds.",
					narrowed && h("a", { class: "button", href: HOME }, "Show all requests"),
				);
	return fragment(
		head("Requests", {
			about:
				"Every submission of the last 7 days by API and SMTP, accepted or refused. " +
				"Requests without a valid key are not listed.",
		}),
		h("div", { class: "card" }, filter),
		first.items ? list() : first,
	);
}
