// The audit log: who changed what, when and from where; exportable as CSV.
import { file } from "../api.js";
import { fragment, h, query } from "../dom.js";
import { form } from "../form.js";
import { loader, paged } from "../lists.js";
import { button, empty, head } from "../pieces.js";
import { when } from "../time.js";

const COLUMNS = [
	{ title: "When", class: "side end" },
	{ title: "Who", lead: true },
	{ title: "Action", class: "bare" },
	{ title: "Object", class: "break bare" },
	{ title: "Details", class: "break" },
	{ title: "From", class: "side" },
];
const entry = (each) => [
	when(each.created_at),
	h(
		"bdi",
		{ class: "break" },
		each.actor_kind === "operator" ? `operator (${each.actor})` : each.actor_name || each.actor,
	),
	h("code", null, each.action),
	h("bdi", { class: "mono" }, each.object || "–"),
	h(
		"bdi",
		null,
		Object.entries(each.details)
			.map(([name, value]) => `${name}: ${value}`)
			.join(", ") || "–",
	),
	h("bdi", { class: "mono" }, each.address),
];

async function exported(action) {
	const [{ save }, csv] = await Promise.all([
		import("../message-body.js"),
		file(query("/v1/audit", { action, format: "csv" })),
	]);
	save(csv, "audit.csv");
}

export default async function audit(page) {
	const action = new URLSearchParams(location.search).get("action") ?? "";
	const load = loader(page.signal, "/v1/audit", "audit", "before", { action });
	const first = await load();
	const filter = form({
		inline: true,
		fields: [
			{
				name: "action",
				label: "Action",
				value: action,
				placeholder: "api_key or api_key.created",
				maxlength: 64,
			},
		],
		submit: "Filter actions",
		send: (given) => page.go(query("/dashboard/audit", { action: given.action.trim() })),
	});
	return fragment(
		head("Audit log", {
			about: "Every change of the last year: who made it, when and from where. " + "The newest 100,000 are kept.",
			actions: [button("Export CSV", () => exported(action))],
		}),
		h("div", { class: "card" }, filter),
		first.items.length || first.next
			? paged("Changes, newest first", COLUMNS, first, entry, load)
			: empty("No changes found", action ? `No changes with the action ${action}.` : "No changes yet."),
	);
}
