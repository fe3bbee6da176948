// API keys and SMTP credentials: created here, shown once, revoked permanently.
import { del, get, post } from "../api.js";
import { fragment, h, path, toast } from "../dom.js";
import { confirmed, form, secretBox } from "../form.js";
import { loader, paged } from "../lists.js";
import { badge, button, code, empty, head } from "../pieces.js";
import { firstMessageTabs, smtp } from "../snippets.js";
import { ago, when } from "../time.js";

const state = (each) => (each.revoked_at ? badge("failed", "revoked") : badge("success", "works"));

function revoke(page, what, address, name) {
	return button(
		"Revoke",
		async () => {
			if (
				!(await confirmed(
					`Revoke ${name}?`,
					"It works no more, at once and for good. Programs that use it are refused.",
					"Revoke it",
				))
			)
				return;
			await del(address);
			toast(`${what} revoked`);
			await page.reload();
		},
		"tiny danger",
		{ "aria-label": `Revoke ${name}` },
	);
}

const KEY_COLUMNS = [
	{ title: "Name" },
	{ title: "Key" },
	{ title: "May", class: "wide" },
	{ title: "Last used", class: "side wide" },
	{ title: "Created", class: "side wide" },
	{ title: "State", class: "side" },
	{ title: "", class: "side" },
];
const keyRow = (page) => (each) => [
	each.name || "–",
	h("code", null, `ma_${each.test ? "test" : "live"}_…${each.hint}`),
	`${each.scope === "full" ? "send and read" : "send"}${each.test ? ", tests only" : ""}`,
	ago(each.last_used_at),
	when(each.created_at),
	state(each),
	!each.revoked_at && revoke(page, "Key", path("/v1/api-keys", each.id), each.name || `the key …${each.hint}`),
];

const CREDENTIAL_COLUMNS = [
	{ title: "Name" },
	{ title: "Username" },
	{ title: "Last used", class: "side wide" },
	{ title: "Created", class: "side wide" },
	{ title: "State", class: "side" },
	{ title: "", class: "side" },
];
const credentialRow = (page) => (each) => [
	each.name || "–",
	h("code", { class: "break" }, each.username),
	ago(each.last_used_at),
	when(each.created_at),
	state(each),
	!each.revoked_at &&
		revoke(page, "Credential", path("/v1/smtp-credentials", each.username), each.name || each.username),
];

function keyForm(place, domain) {
	return form({
		inline: true,
		fields: [
			{ name: "name", label: "Name of the key", placeholder: "web shop", maxlength: 64 },
			{
				name: "scope",
				label: "It may",
				type: "select",
				options: [
					["send", "send"],
					["full", "send and read"],
				],
			},
			{
				name: "test",
				label: "For",
				type: "select",
				options: [
					["", "real mail"],
					["test", "tests only: nothing leaves"],
				],
			},
		],
		submit: "Create key",
		async send(values) {
			const made = await post("/v1/api-keys", { name: values.name, scope: values.scope, test: values.test === "test" });
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
	// The list is updated once the secret is closed: nothing moves while the user copies it.
	for (const place of [keyPlace, credentialPlace]) {
		new MutationObserver(() => place.childElementCount === 0 && page.reload()).observe(place, { childList: true });
	}
	return fragment(
		head("Keys & credentials", { about: "Programs send with an API key over HTTP, or with a credential over SMTP." }),
		h(
			"section",
			{ class: "stack" },
			h("h2", null, "API keys"),
			h("div", { class: "card" }, keyForm(keyPlace, domain)),
			keyPlace,
			firstKeys.items.length
				? paged("API keys, newest first", KEY_COLUMNS, firstKeys, keyRow(page), loadKeys)
				: empty(
						"No key yet",
						"Create one for each program that sends; then each can be revoked alone.",
						firstMessageTabs(domain),
					),
		),
		h(
			"section",
			{ class: "stack" },
			h("h2", null, "SMTP credentials"),
			h("div", { class: "card" }, credentialForm(credentialPlace, service)),
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
						"Mail programs and older software send with these settings.",
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
