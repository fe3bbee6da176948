// One domain: the records to publish, their state in DNS, and the check.
import { del, get, post } from "../api.js";
import { copy, fragment, h, path, style, toast } from "../dom.js";
import { confirmed } from "../form.js";
import { badge, button, copyButton, errorText, head, notice } from "../pieces.js";
import { ago } from "../time.js";

/** Domains just added, so that their records appear without a DNS check. */
export const added = new Map();

const STANDING = {
	pending: [
		"deferred",
		"Not verified: you cannot send from this domain yet. " +
			"Publish these records at your DNS provider, then check them. " +
			"One DKIM record is enough to start; publish all for reliable delivery.",
	],
	verified: ["delivered", "Verified: you can send from this domain."],
	allowed: [
		"delivered",
		"Added by the operator: you can send from this domain. Publish these records so that receivers trust its mail.",
	],
};
const WORDS = { ok: "published", missing: "missing", differs: "differs", unknown: "not checked" };
const KINDS = { spf: "SPF", dkim: "DKIM", dmarc: "DMARC", return_path: "Return path" };

/** The state of a domain's records by kind; unused kinds are omitted. */
export const dnsStates = (dns) =>
	h(
		"ul",
		{ class: "row states", "aria-label": "DNS records" },
		Object.entries(KINDS)
			.filter(([kind]) => !dns || dns[kind])
			.slice(0, dns ? 4 : 3)
			.map(([kind, name]) =>
				h("li", null, badge(dns?.[kind] ?? "unknown", `${name} ${WORDS[dns?.[kind] ?? "unknown"]}`)),
			),
	);

const copied = (name, value) =>
	h(
		"div",
		{ class: "copied" },
		h("span", { class: "quiet small" }, name),
		h("code", { class: "break" }, value),
		copyButton(value, `the record's ${name.toLowerCase()}`),
	);

/** A name relative to its domain, as many DNS consoles expect; `@` is the domain itself. */
export const relative = (name, domain) =>
	name === domain ? "@" : name.endsWith(`.${domain}`) ? name.slice(0, -domain.length - 1) : `${name}.`;

/** A record in zone file format: quoted strings of up to 255 characters (RFC 1035 3.3). */
export function zoneLine({ name, type, value }) {
	const strings = value.match(/[^]{1,255}/g) ?? [""];
	const quoted = strings.map((each) => `"${each.replace(/["\\]/g, "\\$&")}"`).join(" ");
	return `${name}. 3600 IN ${type} ${type === "TXT" ? quoted : value}`;
}

function record(each, domain) {
	const shown =
		each.status === "ok" ? null : each.note || (each.status === "missing" ? "DNS has no record with this name." : null);
	return h(
		"li",
		{ class: `card record ${each.status}` },
		h(
			"div",
			{ class: "row" },
			h("span", { class: "tag" }, each.type),
			h("h3", null, each.purpose.split(":")[0]),
			badge(each.status, WORDS[each.status]),
			!each.needed &&
				h(
					"span",
					{ class: "quiet small" },
					each.purpose.startsWith("DKIM") ? "retired; keep it for mail already sent" : "optional",
				),
			each.pending && h("span", { class: "quiet small" }, "new; signs once DNS shows it"),
		),
		h("p", { class: "quiet small" }, each.purpose.split(": ").slice(1).join(": ")),
		copied("Name", each.name),
		copied("Value", each.value),
		h(
			"p",
			{ class: "quiet small" },
			"Name within ",
			domain,
			": ",
			h("code", { class: "break" }, relative(each.name, domain)),
		),
		shown && h("p", { class: "small shown" }, shown),
		each.status !== "ok" &&
			each.found.map((found) => h("p", { class: "small" }, "Found in DNS: ", h("code", { class: "break" }, found))),
	);
}

function records(domain) {
	return fragment(
		notice(...STANDING[domain.status]),
		h(
			"div",
			{ class: "checked" },
			dnsStates(domain.dns),
			h(
				"p",
				{ class: "quiet small" },
				"Last check: ",
				ago(domain.dns?.checked_at, "not yet"),
				". DNS is checked every ten minutes until all records are correct, then daily; ",
				"less often while it does not respond, and in the sandbox only on request.",
			),
		),
		h(
			"section",
			null,
			h(
				"div",
				{ class: "titled" },
				h("h2", null, "DNS records to publish"),
				button("Copy all as a zone file", () => copy(`${domain.records.map(zoneLine).join("\n")}\n`)),
			),
			h(
				"ol",
				{ class: "records" },
				domain.records.map((each) => record(each, domain.name)),
			),
		),
	);
}

export default async function domain(page) {
	const [name] = page.params;
	const address = path("/v1/domains", name);
	const place = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, "Checking DNS …"));
	const state = h("span");
	const show = (found) => {
		place.replaceChildren(records(found));
		state.replaceChildren(badge(found.status));
	};
	const known = added.get(name);
	added.delete(name);
	const check = button(
		"Check now",
		async () => {
			const found = await post(`${address}/verify`);
			show(found);
			const right = found.records.filter((each) => each.status === "ok").length;
			toast(`${right} of ${found.records.length} records are published`);
		},
		"primary",
		{ needs: "verifyDomain" },
	);
	const remove = button(
		"Remove domain",
		async () => {
			if (
				!(await confirmed(
					`Remove ${name}?`,
					"You can no longer send from this domain. Queued mail is still delivered. To use it again, verify it again.",
					"Remove domain",
				))
			)
				return;
			await del(address);
			await page.go("/dashboard/domains");
		},
		"danger",
		{ needs: "removeDomain" },
	);
	await style("pages");
	if (known) show(known);
	else {
		// DNS may be slow, and the page does not wait for it. The list reports an unknown domain at once.
		get(address, page.signal).then(
			show,
			(error) => error.name !== "AbortError" && place.replaceChildren(errorText(error)),
		);
	}
	return fragment(
		head(name, { crumb: { href: "/dashboard/domains", title: "Domains" }, badge: state, actions: [remove, check] }),
		place,
	);
}
