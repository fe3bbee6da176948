// One account, for administrators: volume, limits, domains, users and messages.
import { credits, suspension } from "../accounts.js";
import { del, get, post } from "../api.js";
import { fragment, h, path, toast } from "../dom.js";
import { confirmed, formDialog, shownOnce } from "../form.js";
import { shownName } from "../idn.js";
import { menu } from "../menu.js";
import { badge, button, copyButton, facts, head, notice, rate, section, table } from "../pieces.js";
import { bytes } from "../bytes.js";
import { tile, tiles } from "../tile.js";
import { ago, number, percent, when } from "../time.js";
import { changeRole } from "./people.js";

const DAYS = 30;
const DOMAINS = [{ title: "Domain" }, { title: "State", class: "side" }];
const PEOPLE = [{ title: "Person" }, { title: "Actions", class: "side" }];

function volume(account, usage) {
	const tried = usage.delivered + usage.bounced + usage.failed;
	const rated = (share, mark) => (share === null ? "no mail yet" : rate(share, mark));
	return tiles(
		tile("Sent", number(usage.sent), { notes: [`${number(usage.sent_today)} today (UTC)`] }),
		tile("Delivered", number(usage.delivered), { notes: [tried > 0 && percent(usage.delivered / tried)] }),
		tile("Bounced", number(usage.bounced), { notes: [rated(usage.bounce_rate, usage.bounce_mark)] }),
		tile("Complaints", number(usage.complained), { notes: [rated(usage.complaint_rate, usage.complaint_mark)] }),
		tile("Waiting", number(usage.waiting)),
		tile("Credits", account.credits === null ? "Unlimited" : number(account.credits)),
	);
}

function changeCap(page, account) {
	formDialog(`Daily cap of ${account.name}`, {
		about: "Maximum recipients per day (UTC). Recipients of today's messages count.",
		fields: [
			{
				name: "recipients",
				label: "Recipients per day",
				type: "number",
				value: account.daily_cap ?? "",
				hint: "Empty: no cap.",
				autofocus: true,
			},
		],
		submit: "Save cap",
		send: ({ recipients }) =>
			post(path("/v1/admin/accounts", account.id, "daily-cap"), {
				recipients: recipients === "" ? null : Number(recipients),
			}),
		async done() {
			toast("Daily cap saved");
			await page.reload();
		},
	});
}

async function resetPassword(user, place) {
	const text = "Creates a one-time link that is valid for a day. The server mails it if it can.";
	if (!(await confirmed(`Reset password of ${user.email}?`, text, "Create link", "Cancel", "primary"))) return;
	const made = await post(path("/v1/admin/users", user.id, "password-reset"));
	const box = shownOnce(
		made.mailed ? "The user gets this link by mail" : "Send this link to the user",
		"The old password works until the link is used.",
		[
			["For", made.email],
			["Link", made.link],
		],
	);
	place.replaceChildren(box);
	box.querySelector("h2").focus();
}

async function resetFactor(page, user) {
	const text = "For a user who lost the app and the recovery codes. A login then requires only the password.";
	if (!(await confirmed(`Reset two-factor authentication of ${user.email}?`, text, "Reset two-factor", "Cancel")))
		return;
	await del(path("/v1/admin/users", user.id, "totp"));
	toast("Two-factor authentication is off.");
	await page.reload();
}

function people(page, users, place) {
	const row = (user) => [
		[
			h(
				"p",
				{ class: "row" },
				h("bdi", { class: "break" }, user.email),
				user.admin && badge("queued", "administrator"),
			),
			h(
				"p",
				{ class: "quiet small" },
				`${user.role} · two-factor ${user.totp ? "on" : "off"}`,
				user.last_seen_at && [" · seen ", ago(user.last_seen_at)],
			),
		],
		menu(`Actions for ${user.email}`, [
			button("Change role", () => changeRole(page, user, path("/v1/admin/users", user.id, "role")), "", {
				"aria-label": `Change role of ${user.email}`,
			}),
			button("Reset password", () => resetPassword(user, place), "", {
				"aria-label": `Reset password of ${user.email}`,
			}),
			user.totp &&
				button("Reset two-factor", () => resetFactor(page, user), "danger", {
					"aria-label": `Reset two-factor authentication of ${user.email}`,
				}),
		]),
	];
	return table("Users of the account", PEOPLE, users.map(row));
}

const standing = (domain) =>
	domain.verified_at ? badge("verified") : domain.usable ? badge("allowed") : badge("pending");

async function account(page, id) {
	const address = path("/v1/admin/accounts", id);
	const [shown, usage, { users }] = await Promise.all([
		get(address, page.signal),
		get(`${address}/usage?days=${DAYS}`, page.signal),
		get(`${address}/users`, page.signal),
	]);
	const place = h("div");
	return fragment(
		head(shown.name, {
			crumb: { href: "/dashboard/admin", title: "Admin" },
			about: h("bdi", null, shown.email),
			badge: shown.suspended ? badge("failed", "suspended") : badge("success", "active"),
			actions: [
				menu("Account actions", [
					button("Change credits", () => credits(page, shown)),
					button("Change daily cap", () => changeCap(page, shown)),
					suspension(page, shown),
				]),
				h("a", { class: "button primary", href: path("/dashboard/admin/accounts", id, "messages") }, "View messages"),
			],
		}),
		place,
		section(`Last ${DAYS} days`, volume(shown, usage)),
		section(
			"Account",
			h(
				"div",
				{ class: "card" },
				facts([
					["Account id", h("code", { class: "break" }, shown.id), copyButton(shown.id, "account id")],
					["Daily cap", shown.daily_cap === null ? "none" : `${number(shown.daily_cap)} recipients a day (UTC)`],
					["Storage", bytes(shown.stored_bytes)],
					["Since", when(shown.created_at)],
				]),
			),
		),
		section(
			"Domains",
			usage.domains.length
				? table(
						"Domains of the account",
						DOMAINS,
						usage.domains.map((each) => [h("span", { class: "mono break" }, shownName(each.name)), standing(each)]),
					)
				: h("p", { class: "quiet" }, "No domains yet."),
		),
		section("People", people(page, users, place)),
	);
}

/** The messages of an account, on the pages that show one's own. */
async function messages(page, id, message) {
	const found = await get(path("/v1/admin/accounts", id), page.signal);
	const of = {
		account: found,
		api: path("/v1/admin/accounts", id, "emails"),
		home: path("/dashboard/admin/accounts", id, "messages"),
		head: () =>
			fragment(
				head("Messages", { crumb: { href: path("/dashboard/admin/accounts", id), title: found.name } }),
				notice(
					"deferred",
					"Everything you read here is recorded in the audit logs of the account and the installation.",
				),
			),
	};
	const module = await import(message ? "./message.js" : "./messages.js");
	return module.default({ ...page, params: [message], of });
}

export default async function managed(page) {
	const [kind, id, below, message, ...more] = page.params;
	if (kind !== "accounts" || !id || (below !== undefined && below !== "messages") || more.length)
		throw Object.assign(new Error("Page not found."), { status: 404 });
	return below ? messages(page, id, message) : account(page, id);
}
