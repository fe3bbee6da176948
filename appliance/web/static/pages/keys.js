// API keys and SMTP credentials: create, show once, roll, delete.
import { del, get, post } from "../api.js";
import { fragment, h, may, path, toast } from "../dom.js";
import { confirmed, formDialog, secretBox } from "../form.js";
import { shownName } from "../idn.js";
import { loader, paged } from "../lists.js";
import { menu } from "../menu.js";
import { badge, button, code, empty, head } from "../pieces.js";
import { firstMessageTabs, smtp } from "../snippets.js";
import { streamOptions } from "../streams.js";
import { ago, when } from "../time.js";

const isOver = (each) => each.expires_at && Date.parse(each.expires_at) <= Date.now();

function state(each) {
	if (each.revoked_at) return badge("failed", "revoked");
	return isOver(each) ? badge("failed", "expired") : badge("success", "works");
}

function revoke(page, what, address, name) {
	return button(
		`Delete ${what.toLowerCase()}`,
		async () => {
			if (
				!(await confirmed(
					`Delete ${what.toLowerCase()} ${name}?`,
					"It stops working immediately and permanently. Programs that use it can no longer send.",
					`Delete ${what.toLowerCase()}`,
				))
			)
				return;
			await del(address);
			toast(`${what} deleted`);
			await page.reload();
		},
		"danger",
		{ "aria-label": `Delete ${what.toLowerCase()} ${name}` },
	);
}

const KEY_COLUMNS = [
	{ title: "Name", class: "cut key-name" },
	{ title: "Key", class: "side" },
	{ title: "Scope" },
	{ title: "Last used", class: "cut" },
	{ title: "Expires", class: "side" },
	{ title: "State", class: "side" },
	{ title: "Actions", class: "side", needs: "revokeApiKey" },
];
const SCOPES = [
	["send", "send", "Sends mail, over HTTP only. Cannot read anything. For an application."],
	["read", "read", "Reads messages and their status. Cannot send. For a report or a support tool."],
	["full", "send and read", "Sends mail and reads its status."],
	[
		"manage",
		"send, read and manage the account",
		"Also manages domains, templates, webhook, suppressions and keys. For automation; keep it off web servers.",
	],
];
const EXPIRIES = [
	["", "never"],
	["30", "in 30 days"],
	["90", "in 90 days"],
	["365", "in a year"],
];
const OVERLAPS = [
	["86400", "24 hours"],
	["3600", "1 hour"],
	["604800", "7 days"],
	["0", "not at all"],
];

function limits(each) {
	const scope = SCOPES.find(([name]) => name === each.scope)?.[1] ?? each.scope;
	return [
		scope,
		each.domain && [" from ", h("bdi", { class: "mono break" }, shownName(each.domain))],
		each.test && ", tests only",
		each.stream && [", stream ", h("bdi", { class: "break" }, each.stream)],
		each.previous_hint && ["; …", each.previous_hint, " works until ", when(each.previous_expires_at)],
	];
}

function rolled(each, place) {
	const name = each.name || `…${each.hint}`;
	return button(
		"Roll key",
		() =>
			formDialog(`Roll key ${name}`, {
				about: "The key gets a new secret. Scope and limits stay the same.",
				fields: [{ name: "overlap", label: "Old secret keeps working for", type: "select", options: OVERLAPS }],
				submit: "Roll key",
				send: ({ overlap }) => post(path("/v1/api-keys", each.id, "roll"), { overlap: Number(overlap) }),
				done: (made) => reveal(place, secretBox(`API key ${made.name}`.trim(), [["API key", made.key]])),
			}),
		"",
		{ "aria-label": `Roll key ${name}` },
	);
}

/** Show a secret above the list. */
function reveal(place, box) {
	place.replaceChildren(box);
	box.querySelector("h2").focus();
}

const named = (each) => [
	h("bdi", { class: "break" }, each.name || "–"),
	each.created_by && h("span", { class: "quiet small" }, " by ", h("bdi", { class: "break" }, each.created_by)),
];

const streamField = async (page) => ({
	name: "stream",
	label: "Stream",
	type: "select",
	options: await streamOptions("transactional, unless the message names one", page.signal),
});

const keyRow = (page, place) => (each) => {
	const name = each.name || `…${each.hint}`;
	return [
		named(each),
		h("code", null, `ma_${each.test ? "test" : "live"}_…${each.hint}`),
		limits(each),
		[ago(each.last_used_at), each.last_used_from && [" from ", h("bdi", { class: "mono" }, each.last_used_from)]],
		each.expires_at ? when(each.expires_at) : "never",
		state(each),
		!each.revoked_at &&
			menu(`Actions for key ${name}`, [
				!isOver(each) && rolled(each, place),
				revoke(page, "Key", path("/v1/api-keys", each.id), name),
			]),
	];
};

const CREDENTIAL_COLUMNS = [
	{ title: "Name", class: "cut to" },
	{ title: "Username" },
	{ title: "Last used", class: "side" },
	{ title: "Created", class: "side" },
	{ title: "State", class: "side" },
	{ title: "Actions", class: "side", needs: "revokeSmtpCredential" },
];
const credentialRow = (page) => (each) => {
	const name = each.name || each.username;
	return [
		named(each),
		[
			h("code", { class: "break" }, each.username),
			each.stream && h("span", { class: "quiet small" }, " stream ", h("bdi", { class: "break" }, each.stream)),
		],
		ago(each.last_used_at),
		when(each.created_at),
		state(each),
		!each.revoked_at &&
			menu(`Actions for credential ${name}`, [
				revoke(page, "Credential", path("/v1/smtp-credentials", each.username), name),
			]),
	];
};

const nameField = (label, placeholder) => ({
	name: "name",
	label,
	placeholder,
	required: true,
	maxlength: 64,
	hint: "The program that uses it. One each, so that you can revoke it separately.",
	autofocus: true,
});

async function newKey(page, place, domain, domains) {
	const stream = await streamField(page);
	formDialog("New key", {
		fields: [
			nameField("Name of the key", "web shop"),
			{ name: "scope", label: "Scope", type: "choice", value: "send", options: SCOPES },
			{
				name: "domain",
				label: "From",
				type: "select",
				options: [["", "any domain"], ...domains.map((each) => [each.name, shownName(each.name)])],
			},
			stream,
			{ name: "expires_in", label: "Expires", type: "select", options: EXPIRIES },
			{
				name: "test",
				label: "For",
				type: "select",
				options: [
					["", "real mail"],
					["test", "test mail, never delivered"],
				],
			},
		],
		submit: "Create key",
		send: (values) =>
			post("/v1/api-keys", {
				name: values.name,
				scope: values.scope,
				test: values.test === "test",
				domain: values.domain || null,
				stream: values.stream || null,
				expires_in: values.expires_in ? Number(values.expires_in) * 86_400 : null,
			}),
		done: (made) =>
			reveal(
				place,
				secretBox(
					`API key ${made.name}`.trim(),
					[["API key", made.key]],
					h("h3", null, "Your first message"),
					firstMessageTabs(domain, made.key),
				),
			),
	});
}

async function newCredential(page, place, service) {
	const stream = await streamField(page);
	formDialog("New SMTP credential", {
		about: "A username and a password for a program that sends by SMTP.",
		fields: [
			nameField("Name of the credential", "CRM"),
			{
				name: "dsn",
				label: "Bounces by mail",
				type: "select",
				options: [
					["", "only if the program asks (NOTIFY)"],
					["failure", "always, to the envelope sender"],
				],
			},
			stream,
		],
		submit: "Create credential",
		send: (values) =>
			post("/v1/smtp-credentials", {
				name: values.name,
				dsn: values.dsn || null,
				stream: values.stream || null,
			}),
		done: (made) => {
			const rows = [...smtp(service, made.username), ["Password", made.password]];
			reveal(place, secretBox(`SMTP credential ${made.name ?? ""}`.trim(), rows));
		},
	});
}

export default async function keys(page) {
	const loadKeys = loader(page.signal, "/v1/api-keys", "api_keys", "before");
	const loadCredentials = loader(page.signal, "/v1/smtp-credentials", "smtp_credentials", "before");
	const [firstKeys, firstCredentials, { service }, { domains }] = await Promise.all([
		loadKeys(),
		loadCredentials(),
		get("/v1/account", page.signal),
		get("/v1/domains?limit=100", page.signal),
	]);
	const domain = (domains.find((each) => each.status !== "pending") ?? domains[0])?.name ?? "your-domain.example";
	const place = h("div");
	// Refresh the lists after the secret is closed, so that nothing moves while the user copies it.
	new MutationObserver(() => place.childElementCount === 0 && page.reload()).observe(place, { childList: true });
	return fragment(
		head("Keys & credentials", {
			about: "Applications send with an API key over HTTP, or with an SMTP credential.",
			actions: [
				button("New credential", () => newCredential(page, place, service), "", { needs: "createSmtpCredential" }),
				button("New key", () => newKey(page, place, domain, domains), "primary", { needs: "createApiKey" }),
			],
		}),
		place,
		h(
			"section",
			null,
			h("h2", null, "API keys"),
			firstKeys.items.length
				? paged("API keys, newest first", KEY_COLUMNS, firstKeys, keyRow(page, place), loadKeys)
				: empty(
						"No key yet",
						may("createApiKey")
							? "Create one per application, so that you can revoke each separately."
							: "Only owners and developers can create keys.",
						firstMessageTabs(domain),
					),
		),
		h(
			"section",
			null,
			h("h2", null, "SMTP credentials"),
			firstCredentials.items.length
				? paged(
						"SMTP credentials, newest first",
						CREDENTIAL_COLUMNS,
						firstCredentials,
						credentialRow(page),
						loadCredentials,
					)
				: empty(
						"No credential yet",
						"Settings for mail clients and other SMTP software.",
						code(
							smtp(service, "created with the credential")
								.map(([name, value]) => `${name}: ${value}`)
								.join("\n"),
							"the SMTP settings",
						),
					),
		),
	);
}
