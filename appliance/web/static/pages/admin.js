// The operator's page: whether mail goes out, the queue by provider pool, and all accounts.
import { credits, suspension } from "../accounts.js";
import { get, post } from "../api.js";
import { fragment, h, path, toast } from "../dom.js";
import { formDialog } from "../form.js";
import { goingOut } from "../going-out.js";
import { loader, paged } from "../lists.js";
import { menu } from "../menu.js";
import { badge, button, head, notice, section, table } from "../pieces.js";
import { providerName } from "../provider-names.js";
import { sparkline } from "../tile.js";
import { ago, count, number, when } from "../time.js";
import { update } from "../update.js";
import { warmupTable } from "../warmups.js";

const ACCOUNTS = [
	{ title: "Name" },
	{ title: "Login", class: "wide" },
	{ title: "Credits", class: "number" },
	{ title: "Daily cap", class: "number wide" },
	{ title: "State", class: "side" },
	{ title: "Since", class: "side wide" },
	{ title: "Actions", class: "side" },
];
const POOLS = [
	{ title: "Provider" },
	{ title: "Due", class: "number" },
	{ title: "Deferred", class: "number" },
	{ title: "Oldest", class: "side wide" },
	{ title: "Sessions", class: "number wide" },
	{ title: "State" },
	{ title: "", class: "side" },
];
const NODES = [
	{ title: "Node" },
	{ title: "State" },
	{ title: "Address", class: "wide" },
	{ title: "Version", class: "side wide" },
	{ title: "Started", class: "side wide" },
	{ title: "Lease", class: "number wide" },
	{ title: "In flight", class: "number" },
	{ title: "Waiting", class: "number" },
	{ title: "Skew", class: "number wide" },
	{ title: "", class: "side" },
];

function accountRow(page) {
	return (each) => [
		h("a", { href: path("/dashboard/admin/accounts", each.id) }, h("bdi", null, each.name)),
		h("bdi", { class: "mono" }, each.email),
		each.credits === null ? "unlimited" : number(each.credits),
		each.daily_cap === null ? "none" : number(each.daily_cap),
		each.suspended ? badge("failed", "suspended") : badge("success", "active"),
		when(each.created_at),
		menu(`Actions for ${each.name}`, [
			button("Change credits", () => credits(page, each), "", { "aria-label": `Change credits of ${each.name}` }),
			suspension(page, each),
		]),
	];
}

function newAccount(page) {
	formDialog("New account", {
		fields: [
			{
				name: "name",
				label: "Name",
				required: true,
				maxlength: 64,
				hint: "Letters, digits, dots, underscores and hyphens.",
				autofocus: true,
			},
			{ name: "email", label: "Login (email address)", type: "email", required: true },
			{
				name: "password",
				label: "Password",
				type: "password",
				required: true,
				minlength: 8,
				autocomplete: "new-password",
			},
			{ name: "credits", label: "Credits", type: "number", hint: "Empty: unlimited." },
			{
				name: "role",
				label: "Role",
				type: "select",
				options: [
					["customer", "customer"],
					["admin", "administrator"],
				],
			},
		],
		submit: "Create account",
		send: (values) =>
			post("/v1/admin/accounts", { ...values, credits: values.credits === "" ? null : Number(values.credits) }),
		async done(_, values) {
			toast(`Account ${values.name} created`);
			await page.reload();
		},
	});
}

function poolState(pool, warmups) {
	if (pool.held_at)
		return fragment(
			badge("failed", "held"),
			...(pool.held_by.length > 0 ? pool.held_by : [pool]).map((hold) =>
				h(
					"span",
					{ class: "quiet small" },
					hold.node ? ` by node ${hold.node}: ` : " ",
					hold.held_because,
					hold.next_probe_at ? fragment("; next probe ", ago(hold.next_probe_at)) : "",
				),
			),
		);
	if (pool.slowed_until)
		return fragment(badge("deferred", "slowed"), " ", h("span", { class: "quiet small" }, pool.slowed_because));
	if (pool.slowed_accounts)
		return fragment(
			badge("success", "open"),
			" ",
			h("span", { class: "quiet small" }, `slowed for ${number(pool.slowed_accounts)} of the accounts`),
		);
	const waits = warmups
		.filter((each) => each.pool === pool.pool && each.next_at)
		.sort((a, b) => (a.next_at < b.next_at ? -1 : 1))[0];
	if (waits)
		return fragment(
			badge("deferred", "warm-up"),
			" ",
			h(
				"span",
				{ class: "quiet small" },
				`${number(waits.per_hour)} per hour from ${waits.address} on day ${waits.day}, next `,
				ago(waits.next_at),
			),
		);
	return badge("success", "open");
}

function warmupSection(warmups) {
	return section(
		"Warm-up of new addresses",
		h(
			"div",
			{ class: "stack" },
			h(
				"p",
				{ class: "quiet" },
				"Recipients per hour that a provider gets from a new sending address. " +
					"Further mail is queued without an attempt.",
			),
			warmupTable(warmups),
		),
	);
}

function poolRow(draw, warmups) {
	const pause = (pool) =>
		formDialog(`Hold mail to ${pool}?`, {
			about: "Mail is queued until you resume it. Accounts with queued mail see the reason.",
			fields: [
				{ name: "reason", label: "Reason", placeholder: "they move to new servers", maxlength: 200, autofocus: true },
			],
			submit: "Hold mail",
			send: ({ reason }) => post(`${path("/v1/admin/queue", pool)}/pause`, reason ? { reason } : {}),
			done: draw,
		});
	const resume = (pool) => async () => {
		await post(`${path("/v1/admin/queue", pool)}/resume`);
		await draw();
	};
	return (each) => ({
		id: each.pool ?? "-",
		cells: [
			fragment(
				each.pool === null ? "not looked up yet" : providerName(each.pool),
				h(
					"span",
					{ class: "quiet small" },
					each.destinations.length > 0 && each.destinations.some((to) => to.domain !== each.pool)
						? `  ${each.destinations.map((to) => to.domain).join(", ")}`
						: "",
				),
			),
			number(each.waiting),
			number(each.deferred),
			ago(each.oldest_at, "–"),
			each.in_use === null ? "–" : `${each.in_use} of ${each.allowed}`,
			poolState(each, warmups),
			each.pool &&
				(each.held_at
					? button("Resume", resume(each.pool), "tiny", { "aria-label": `Resume mail to ${each.pool}` })
					: button("Hold", () => pause(each.pool), "tiny", { "aria-label": `Hold mail to ${each.pool}` })),
		],
	});
}

/** Ask for a reason and pause all mail. */
function pauseAll(draw) {
	formDialog("Pause all mail?", {
		about:
			"No mail is delivered and no webhook is posted, for all accounts, until you resume. " +
			"New mail is accepted and queued.",
		fields: [
			{ name: "reason", label: "Reason", placeholder: "the address is being moved", maxlength: 200, autofocus: true },
		],
		submit: "Pause all mail",
		kind: "danger",
		send: ({ reason }) => post("/v1/admin/queue/pause", reason ? { reason } : {}),
		done: draw,
	});
}

const NODE_STATES = { running: "success", draining: "deferred", away: "failed", ended: "" };

// Values of each node from the last ten minutes: by name, then by field.
const LOOKED = 15; // seconds; numbers that change every time
const SEEN = 40;

function remember(past, nodes) {
	for (const { name, in_flight, waiting } of nodes) {
		const seen = past.get(name) ?? { in_flight: [], waiting: [] };
		seen.in_flight = [...seen.in_flight, in_flight].slice(-SEEN);
		seen.waiting = [...seen.waiting, waiting].slice(-SEEN);
		past.set(name, seen);
	}
}

// The number, and its history since the page was opened, on one scale for all nodes.
function traced(past, name, field) {
	const most = Math.max(1, ...[...past.values()].flatMap((each) => each[field]));
	const values = past.get(name)[field];
	return h("span", { class: "traced" }, number(values.at(-1)), sparkline(values, most, SEEN));
}

function nodeSection(nodes, past, draw) {
	const drain = (name) =>
		formDialog(`Drain ${name}?`, {
			about: "The node accepts no new mail, finishes open sessions, hands over its queue and ends.",
			fields: [],
			submit: "Drain node",
			kind: "danger",
			send: () => post(`${path("/v1/admin/nodes", name)}/drain`),
			done: draw,
		});
	const row = (each) => ({
		id: each.name,
		cells: [
			each.name,
			badge(NODE_STATES[each.state], each.state),
			h("span", { class: "mono" }, each.address),
			each.version,
			ago(each.started_at),
			`${each.lease_seconds} s`,
			traced(past, each.name, "in_flight"),
			traced(past, each.name, "waiting"),
			`${each.skew_seconds} s`,
			each.state === "running" &&
				button("Drain", () => drain(each.name), "tiny", { "aria-label": `Drain the node ${each.name}` }),
		],
	});
	return section("Nodes", table("Nodes of the shared database", NODES, nodes.map(row), "cards"));
}

export default async function admin(page) {
	const load = loader(page.signal, "/v1/admin/accounts", "accounts");
	const overall = h("div"),
		queue = h("div"),
		nodes = h("div"),
		ramp = h("div"),
		warm = h("div");
	const past = new Map();
	const pause = button("Pause all mail", () => pauseAll(draw));
	let found;
	const draw = async () => {
		found = await get("/v1/admin/queue", page.signal);
		const { paused, pools, warmups, sandbox } = found;
		const told =
			paused &&
			notice(
				"deferred",
				[`All mail is paused: ${paused.reason}. Paused since `, when(paused.since), "."],
				button("Resume all mail", async () => {
					await post("/v1/admin/queue/resume");
					await draw();
				}),
			);
		pause.hidden = Boolean(paused);
		const simulated = sandbox > 0 && `${count(sandbox, "recipient is", "recipients are")} queued in the sandbox.`;
		update(
			queue,
			told,
			pools.length > 0 && table("Queued mail, by provider pool", POOLS, pools.map(poolRow(draw, warmups)), "cards"),
			(simulated || !pools.length) &&
				h("p", { class: "quiet" }, simulated || "The queue is empty, and no pool is held."),
		);
		update(warm, warmups.length > 0 && warmupSection(warmups));
	};
	const drawNodes = async () => {
		const shared = await get("/v1/admin/nodes", page.signal);
		remember(past, shared.nodes);
		update(nodes, shared.nodes.length > 0 && nodeSection(shared.nodes, past, drawNodes));
	};
	// The chart is rebuilt, so not while it is in use.
	const isRead = () => overall.querySelector("svg:hover, svg:focus-within, .chart details[open]");
	const drawOverall = async (drawn) => {
		const stats = await get("/v1/admin/stats", page.signal);
		await drawn;
		if (!isRead()) update(overall, await goingOut(found, stats));
	};
	const drawRamp = async () => {
		const current = await get("/v1/admin/ramp", page.signal);
		update(ramp, current.percent !== null && (await import("../ramp.js")).rampSection(current));
	};
	const drawn = draw();
	const [first] = await Promise.all([load(), drawn, drawOverall(drawn), drawNodes(), drawRamp()]);
	page.every(5, draw);
	page.every(LOOKED, () => drawOverall());
	page.every(LOOKED, drawNodes);
	page.every(LOOKED, drawRamp);
	return fragment(
		head("Admin", {
			about: "The mail of all accounts.",
			actions: [button("New account", () => newAccount(page), "primary")],
		}),
		overall,
		h("section", null, h("div", { class: "titled" }, h("h2", null, "Queue by provider"), pause), queue),
		nodes,
		ramp,
		warm,
		section("Accounts", paged("Accounts", ACCOUNTS, first, accountRow(page), load, "Load more")),
	);
}
