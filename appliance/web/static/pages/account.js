// The account: credits, password and sessions.
import { del, get, post, put } from "../api.js";
import { bytes } from "../bytes.js";
import { fragment, h, path, toast } from "../dom.js";
import { confirmed, form, formDialog } from "../form.js";
import { loader, paged } from "../lists.js";
import { badge, button, copyButton, facts, head, section, table } from "../pieces.js";
import { secondFactor } from "../second-factor.js";
import { ports } from "../snippets.js";
import { ago, count, number, when } from "../time.js";

const KINDS = {
	reserve: "message accepted",
	release: "returned",
	grant: "added by the operator",
	adjust: "removed by the operator",
};
const LEDGER = [
	{ title: "When", class: "side" },
	{ title: "What" },
	{ title: "Change", class: "number" },
	{ title: "Balance", class: "number" },
];

function entry(each) {
	const what = each.message_id
		? h("a", { href: path("/dashboard/messages", each.message_id) }, KINDS[each.kind] ?? each.kind)
		: (KINDS[each.kind] ?? each.kind);
	return [
		when(each.created_at),
		what,
		`${each.amount > 0 ? "+" : "−"}${number(Math.abs(each.amount))}`,
		number(each.balance),
	];
}

/** "Firefox on Linux", as far as known; the full text on hover. */
function browser(agent) {
	const name = ["Edg", "OPR", "Firefox", "Chrome", "Safari"].find((each) => agent.includes(`${each}/`));
	const system = ["Windows", "Android", "iPhone", "Mac OS", "Linux"].find((each) => agent.includes(each));
	const words = { Edg: "Edge", OPR: "Opera" }[name] ?? name;
	return h(
		"span",
		{ title: agent },
		words ? `${words}${system ? ` on ${system}` : ""}` : agent.slice(0, 40) || "unknown client",
	);
}

function sessionsTable(page, sessions) {
	const columns = [
		{ title: "Program" },
		{ title: "Address" },
		{ title: "Last renewed", class: "side wide" },
		{ title: "Since", class: "side wide" },
		{ title: "Actions", class: "side" },
	];
	return table(
		"Sessions",
		columns,
		sessions.map((each) => [
			browser(each.user_agent),
			h("code", null, each.address),
			ago(each.renewed_at),
			when(each.created_at),
			each.current
				? badge("success", "current")
				: button(
						"End session",
						async () => {
							await del(path("/v1/auth/sessions", each.id));
							await page.reload();
						},
						"tiny",
						{ "aria-label": `End session from ${each.address}` },
					),
		]),
		"cards",
	);
}

function changePassword(page) {
	formDialog("Set a new password", {
		fields: [
			{
				name: "current_password",
				label: "Current password",
				type: "password",
				required: true,
				autocomplete: "current-password",
			},
			{
				name: "new_password",
				label: "New password",
				type: "password",
				required: true,
				autocomplete: "new-password",
				minlength: 8,
				hint: "At least 8 characters. All sessions end, including this one.",
			},
		],
		// For the browser's password manager.
		extra: h("input", { type: "text", value: page.account.email, autocomplete: "username", hidden: true }),
		submit: "Change password",
		send: (values) => post("/v1/auth/password", values),
		done: page.left,
	});
}

const NOTIFY = [
	["at_once", "at once"],
	["daily", "in a daily digest"],
	["never", "never"],
];

function notifications({ notify, email, enabled }) {
	return form({
		fields: [
			{
				name: "notify",
				label: "Mail about problems",
				type: "select",
				options: NOTIFY,
				value: notify,
				hint: enabled ? `Sent to ${email}, once for each problem.` : "This server sends no mail about problems yet.",
			},
		],
		submit: "Save notifications",
		async send(values) {
			await put("/v1/account/notifications", values);
			toast("Notifications saved.");
		},
	});
}

export default async function account(page) {
	if (page.account.totp_required)
		return fragment(
			head("Turn on two-factor authentication", { about: page.account.email }),
			h("p", { class: "quiet" }, "This installation requires two-factor authentication. Turn it on to continue."),
			await secondFactor(page),
		);
	const load = loader(page.signal, "/v1/credits", "entries", "before", { limit: 10 });
	const [mine, first, { sessions }, factor, chosen] = await Promise.all([
		get("/v1/account", page.signal),
		load(),
		get("/v1/auth/sessions", page.signal),
		secondFactor(page),
		get("/v1/account/notifications", page.signal),
	]);
	const leave = button("Log out", async () => {
		await post("/v1/auth/logout");
		page.left();
	});
	const everywhere = button(
		"Log out everywhere",
		async () => {
			if (
				!(await confirmed(
					"Log out everywhere?",
					"All sessions end, including this one. API keys and SMTP credentials keep working.",
					"Log out everywhere",
				))
			)
				return;
			await del("/v1/auth/sessions");
			page.left();
		},
		"danger",
	);
	const others = button("End all other sessions", async () => {
		const { ended } = await del("/v1/auth/sessions?keep=current");
		toast(`${count(ended, "session", "sessions")} ended`);
		await page.reload();
	});
	const { service } = mine;
	return fragment(
		head("Account", {
			about: mine.email,
			badge: mine.suspended && badge("failed", "suspended"),
			actions: [h("a", { class: "button", href: "/dashboard/people" }, "People"), leave],
		}),
		h(
			"div",
			{ class: "card" },
			facts([
				["Name", h("bdi", null, mine.name)],
				["Account id", h("code", null, mine.id), copyButton(mine.id, "account id")],
				["Credits", mine.credits === null ? "unlimited" : number(mine.credits)],
				["Daily cap", mine.daily_cap === null ? "none" : `${number(mine.daily_cap)} recipients a day (UTC)`],
				[
					"Storage",
					mine.stored_bytes_limit === null
						? bytes(mine.stored_bytes)
						: `${bytes(mine.stored_bytes)} of ${bytes(mine.stored_bytes_limit)}`,
				],
				["HTTP", h("code", null, service.base_url), copyButton(service.base_url, "base URL")],
				["SMTP", h("code", null, service.smtp_host), ports(service) ? ` port ${ports(service)}` : " not offered"],
				[
					"Delivery",
					{
						direct: "direct, to each recipient's server",
						relay: "through a relay",
						sandbox: "sandbox: no mail leaves this server",
					}[service.delivery_mode],
				],
				["Since", when(mine.created_at)],
			]),
		),
		section(
			"Credits",
			first.items.length
				? paged("Credit changes, newest first", LEDGER, first, entry, load)
				: h("p", { class: "quiet" }, mine.credits === null ? "Unlimited credits are not counted." : "No changes yet."),
		),
		section("Notifications", h("div", { class: "card" }, notifications(chosen))),
		section(
			"Password",
			h(
				"div",
				{ class: "card titled" },
				h("p", { class: "quiet" }, "A new password ends all sessions, including this one."),
				button("Set a new password", () => changePassword(page)),
			),
		),
		section("Two-factor authentication", factor),
		h(
			"section",
			null,
			h(
				"div",
				{ class: "titled" },
				h("h2", null, "Active sessions"),
				h("div", { class: "row" }, sessions.length > 1 && others, everywhere),
			),
			sessionsTable(page, sessions),
		),
	);
}
