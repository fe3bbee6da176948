// API keys and SMTP credentials: create, show once, roll, delete.
import { del, get, post } from "../api.js";
import { fragment, h, may, path, toast } from "../dom.js";
import { confirmed, dialog, form, secretBox } from "../form.js";
import { loader, paged } from "../lists.js";
import { badge, button, code, empty, head } from "../pieces.js";
import { firstMessageTabs, smtp } from "../snippets.js";
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
		"tiny danger",
		{ "aria-label": `Delete ${what.toLowerCase()} ${name}` },
	);
}

const KEY_COLUMNS = [
	{ title: "Name" },
	{ title: "Key" },
	{ title: "May", class: "wide" },
	{ title: "Last used", class: "side wide" },
	{ title: "Expires", class: "side wide" },
	{ title: "State", class: "side" },
	{ title: "Actions", class: "side", needs: "revokeApiKey" },
];
const SCOPES = [
	["send", "send"],
	["read", "read"],
	["full", "send and read"],
	["manage", "send, read and manage the account"],
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
		each.domain && [" from ", h("bdi", { class: "mono" }, each.domain)],
		each.test && ", tests only",
		each.previous_hint && ["; …", each.previous_hint, " works until ", when(each.previous_expires_at)],
	];
}

function rolled(each, place) {
	const name = each.name || `…${each.hint}`;
	return button(
		"Roll key",
		() =>
			dialog(`Roll key ${name}`, (close) => [
				h("p", { class: "quiet" }, "The key gets a new secret. Scope and limits stay the same."),
				form({
					fields: [{ name: "overlap", label: "Old secret keeps working for", type: "select", options: OVERLAPS }],
					submit: "Roll key",
					extra: [h("button", { type: "button", onclick: () => close() }, "Cancel")],
					async send({ overlap }) {
						const made = await post(path("/v1/api-keys", each.id, "roll"), { overlap: Number(overlap) });
						close();
						place.replaceChildren(secretBox(`API key ${made.name}`.trim(), [["API key", made.key]]));
						place.querySelector("h2").focus();
					},
				}),
			]),
		"tiny",
		{ "aria-label": `Roll key ${name}` },
	);
}

const named = (each) => [
	h("bdi", null, each.name || "–"),
	each.created_by && h("div", { class: "quiet small" }, "by ", h("bdi", { class: "break" }, each.created_by)),
];

const keyRow = (page, place) => (each) => [
	named(each),
	h("code", null, `ma_${each.test ? "test" : "live"}_…${each.hint}`),
	limits(each),
	[ago(each.last_used_at), each.last_used_from && [" from ", h("bdi", { class: "mono" }, each.last_used_from)]],
	each.expires_at ? when(each.expires_at) : "never",
	state(each),
	!each.revoked_at && [
		!isOver(each) && [rolled(each, place), " "],
		revoke(page, "Key", path("/v1/api-keys", each.id), each.name || `…${each.hint}`),
	],
];

const CREDENTIAL_COLUMNS = [
	{ title: "Name" },
	{ title: "Username" },
	{ title: "Last used", class: "side wide" },
	{ title: "Created", class: "side wide" },
	{ title: "State", class: "side" },
	{ title: "Actions", class: "side", needs: "revokeSmtpCredential" },
];
const credentialRow = (page) => (each) => [
	named(each),
	h("code", { class: "break" }, each.username),
	ago(each.last_used_at),
	when(each.created_at),
	state(each),
	!each.revoked_at &&
		revoke(page, "Credential", path("/v1/smtp-credentials", each.username), each.name || each.username),
];

function keyForm(place, domain, domains) {
	return form({
		inline: true,
		fields: [
			{ name: "name", label: "Name of the key", placeholder: "web shop", maxlength: 64 },
			{
				name: "scope",
				label: "Scope",
				type: "select",
				options: SCOPES,
			},
			{
				name: "domain",
				label: "From",
				type: "select",
				options: [["", "any domain"], ...domains.map((each) => [each.name, each.name])],
			},
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
		async send(values) {
			const made = await post("/v1/api-keys", {
				name: values.name,
				scope: values.scope,
				test: values.test === "test",
				domain: values.domain || null,
				expires_in: values.expires_in ? Number(values.expires_in) * 86_400 : null,
			});
			const box = secretBox(
				`API key ${made.name}`.trim(),
				[["API key", made.key]],
				h("h3", null, "Your first message"),
				firstMessageTabs(domain, made.key),
			);
			place.replaceChildren(box);
			box.querySelector("h2").focus();
		},
	});
}

function credentialForm(place, service) {
	return form({
		inline: true,
		fields: [{ name: "name", label: "Name of the credential", placeholder: "CRM", maxlength: 64 }],
		submit: "Create credential",
		async send({ name }) {
			const made = await post("/v1/smtp-credentials", { name });
			const box = secretBox(`SMTP credential ${made.name ?? ""}`.trim(), [
				...smtp(service, made.username),
				["Password", made.password],
			]);
			place.replaceChildren(box);
			box.querySelector("h2").focus();
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
	const keyPlace = h("div");
	const credentialPlace = h("div");
	// Refresh the list after the secret is closed, so that nothing moves while the user copies it.
	for (const place of [keyPlace, credentialPlace]) {
		new MutationObserver(() => place.childElementCount === 0 && page.reload()).observe(place, { childList: true });
	}
	return fragment(
		head("Keys & credentials", { about: "Applications send with an API key over HTTP, or with an SMTP credential." }),
		h(
			"section",
			{ class: "stack" },
			h("h2", null, "API keys"),
			h("div", { class: "card", needs: "createApiKey" }, keyForm(keyPlace, domain, domains)),
			keyPlace,
			firstKeys.items.length
				? paged("API keys, newest first", KEY_COLUMNS, firstKeys, keyRow(page, keyPlace), loadKeys)
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
			{ class: "stack" },
			h("h2", null, "SMTP credentials"),
			h("div", { class: "card", needs: "createSmtpCredential" }, credentialForm(credentialPlace, service)),
			credentialPlace,
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
							smtp(service, "created above")
								.map(([name, value]) => `${name}: ${value}`)
								.join("\n"),
							"the SMTP settings",
						),
					),
		),
	);
}
