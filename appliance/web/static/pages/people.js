// Users of the account: roles, invitations by one-time link, and removal.
import { del, get, post } from "../api.js";
import { fragment, h, path, query, toast } from "../dom.js";
import { confirmed, formDialog, shownOnce } from "../form.js";
import { menu } from "../menu.js";
import { badge, button, head, section, table } from "../pieces.js";
import { ago, when } from "../time.js";

const ROLES = [
	["owner", "owner: full access"],
	["developer", "developer: full access except users"],
	["viewer", "viewer: read only"],
];
const PEOPLE = [
	{ title: "Person" },
	{ title: "Role" },
	{ title: "Two-factor", class: "wide" },
	{ title: "Last seen", class: "side wide" },
	{ title: "Since", class: "side wide" },
	{ title: "Actions", class: "side", needs: "removeUser" },
];
const INVITATIONS = [
	{ title: "Address" },
	{ title: "Role" },
	{ title: "Valid until", class: "side" },
	{ title: "Actions", class: "side", needs: "removeUser" },
];

const roleField = (value) => ({ name: "role", label: "Role", type: "select", options: ROLES, value });

/** Ask for a user's new role; `address` is the API path. */
export function changeRole(page, user, address = path("/v1/users", user.id, "role")) {
	formDialog("Change role", {
		about: h("bdi", null, user.email),
		fields: [{ ...roleField(user.role), autofocus: true }],
		submit: "Change role",
		send: (values) => post(address, values),
		async done() {
			toast("Role changed, effective immediately.");
			await page.reload();
		},
	});
}

/** What a user created and would lose, in words. */
const owned = (user) => [
	...user.api_keys.map((key) => `API key ${key.name}`),
	...user.smtp_credentials.map((credential) => `SMTP credential ${credential.name || credential.username}`),
];

function remove(page, user) {
	const access = owned(user);
	const keep = {
		name: "keep",
		label: "Keep them working",
		type: "checkbox",
		hint: "Otherwise they are revoked, and programs that use them stop sending.",
	};
	const created = access.length > 0 && ` This user created: ${access.join(", ")}.`;
	formDialog(`Remove ${user.email}?`, {
		about: ["All sessions of this user end immediately.", created],
		fields: access.length > 0 ? [keep] : [],
		submit: "Remove user",
		kind: "danger",
		send: (values) => del(query(path("/v1/users", user.id), { keep_keys: values.keep ? "true" : undefined })),
		done: page.reload,
	});
}

const actions = (page, user) =>
	menu(`Actions for ${user.email}`, [
		button("Change role", () => changeRole(page, user), "", { "aria-label": `Change role of ${user.email}` }),
		button("Remove user", () => remove(page, user), "danger", { "aria-label": `Remove user ${user.email}` }),
	]);

const withdraw = (page, each) =>
	button(
		"Withdraw invitation",
		async () => {
			const title = `Withdraw the invitation of ${each.email}?`;
			if (!(await confirmed(title, "The link stops working immediately.", "Withdraw invitation"))) return;
			await del(path("/v1/users", each.id));
			await page.reload();
		},
		"tiny danger",
		{ "aria-label": `Withdraw invitation of ${each.email}` },
	);

function invite(page, place) {
	formDialog("Invite a user", {
		fields: [
			{ name: "email", label: "Email address", type: "email", required: true, autofocus: true },
			roleField("developer"),
		],
		submit: "Create link",
		send: (values) => post("/v1/users", values),
		async done(made) {
			await page.reload();
			const title = made.mailed ? "The user gets this link by mail" : "Send this link to the user";
			const sent = made.mailed ? "The server has mailed it." : "No mail was sent.";
			const box = shownOnce(title, `It works once, for seven days. ${sent}`, [
				["For", made.email],
				["Link", made.link],
			]);
			document.querySelector(place).prepend(box);
			box.querySelector("h2").focus();
		},
	});
}

export default async function people(page) {
	const { users, invitations } = await get("/v1/users", page.signal);
	return fragment(
		head("People", {
			crumb: { href: "/dashboard/account", title: "Account" },
			actions: [button("Invite user", () => invite(page, ".invited"), "primary", { needs: "inviteUser" })],
		}),
		h("div", { class: "invited" }),
		table(
			"Users of the account",
			PEOPLE,
			users.map((user) => [
				[
					h("bdi", { class: "break" }, user.email),
					user.email === page.account.email && [" ", badge("success", "you")],
					user.admin && [" ", badge("queued", "administrator")],
				],
				user.role,
				user.totp ? "on" : "off",
				user.last_seen_at ? ago(user.last_seen_at) : "–",
				when(user.created_at),
				actions(page, user),
			]),
			"cards",
		),
		invitations.length > 0 &&
			section(
				"Open invitations",
				table(
					"Open invitations",
					INVITATIONS,
					invitations.map((each) => [
						h("bdi", { class: "break" }, each.email),
						each.role,
						when(each.expires_at),
						withdraw(page, each),
					]),
					"cards",
				),
			),
		h("p", { class: "quiet small" }, "Owners have full access, developers everything except users, viewers read only."),
	);
}
