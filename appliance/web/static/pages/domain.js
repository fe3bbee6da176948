// One domain: the records to publish, their state in DNS, and the check.
import { del, get, post } from "../api.js";
import { copy, fragment, h, path, toast } from "../dom.js";
import { confirmed } from "../form.js";
import { shownName } from "../idn.js";
import { badge, button, copyButton, errorText, head, notice, table } from "../pieces.js";
import { ago } from "../time.js";

/** Domains just added, so that their records appear without a DNS check. */
export const added = new Map();

const STANDING = {
	pending:
		"Not verified: you cannot send from this domain yet. " +
		"Publish these records at your DNS host, then check them. " +
		"One DKIM record is enough to start; publish all for reliable delivery.",
	verified: "Verified: you can send from this domain.",
	allowed:
		"Added by the operator: you can send from this domain. Publish these records so that receivers trust its mail.",
};

/** Whether the last check of a usable domain showed a wrong or missing record. */
export const isBroken = ({ status, dns }) =>
	status !== "pending" && ["spf", "dkim", "dmarc"].some((kind) => ["missing", "differs"].includes(dns?.[kind]));

/** The status of a domain; broken DNS comes before "verified". */
export const standingBadge = (domain) => (isBroken(domain) ? badge("bounced", "DNS problem") : badge(domain.status));

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

/** A record in zone file format: quoted strings of up to 255 characters (RFC 1035 3.3). */
export function zoneLine({ name, type, value }) {
	const strings = value.match(/[^]{1,255}/g) ?? [""];
	const quoted = strings.map((each) => `"${each.replace(/["\\]/g, "\\$&")}"`).join(" ");
	return `${name}. 3600 IN ${type} ${type === "TXT" ? quoted : value}`;
}

const COLUMNS = [
	{ title: "Record", lead: true },
	{ title: "Name" },
	{ title: "DNS shows now" },
	{ title: "DNS should show" },
];

/** Problems first, then lookups that failed, then the other records; each group in the order of the API. */
export const rank = (each) => (each.problem ? 0 : each.status === "unknown" ? 1 : each.status === "ok" ? 3 : 2);

/** The words of a value; the words that DNS does not show yet are marked. */
function marked(value, found) {
	const known = new Set(found.flatMap((each) => each.split(" ")));
	if (!found.length) return value;
	return value.split(" ").map((word, at) => [at ? " " : "", known.has(word) ? word : h("mark", null, word)]);
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

function remark(each) {
	if (each.pending) return "New key: signs once DNS shows it.";
	if (each.needed || each.purpose.startsWith("Receiving")) return null;
	return each.purpose.startsWith("DKIM") ? "Retired: keep it for mail already sent." : "Optional.";
}

function record(each) {
	const [title, ...purpose] = each.purpose.split(": ");
	const name = each.relative_name ?? each.name;
	const note = each.note || (each.status === "missing" ? "DNS has no record with this name." : "");
	return {
		id: `${each.type} ${each.name}`,
		cells: [
			h(
				"div",
				{ class: "stack" },
				h(
					"div",
					{ class: "row" },
					h("b", null, title),
					badge(each.problem ? "bounced" : each.status, WORDS[each.status]),
				),
				h("span", { class: "quiet small" }, [remark(each), sentence(purpose.join(": "))].filter(Boolean).join(" ")),
			),
			h(
				"div",
				{ class: "stack" },
				h("div", { class: "row" }, h("span", { class: "tag" }, each.type), copyButton(name, "the record's name")),
				h("code", { class: "break" }, name),
				name !== each.name && h("span", { class: "quiet small break" }, `${each.name}.`),
			),
			h(
				"div",
				{ class: each.status === "ok" ? "stack short" : "stack" },
				note && h("p", { class: "small" }, sentence(note.replace(/\.$/, ""))),
				each.found.map((found) => h("code", { class: "break" }, found)),
			),
			each.status === "ok"
				? h("span", { class: "quiet small" }, "As it is.")
				: h(
						"div",
						{ class: "stack" },
						h("div", null, copyButton(each.value, "the record's value")),
						h("code", { class: "break" }, marked(each.value, each.found)),
					),
		],
	};
}

/** A link to the DNS host's console. Its address is in the server's own list, never taken from DNS. */
function consoleLink({ host, console_url: address }) {
	const made = h("a", { class: "button tiny", target: "_blank", rel: "noopener noreferrer" }, `Open ${host}`);
	made.href = address;
	return made;
}

const zoneText = ({ zone }) =>
	zone &&
	h(
		"p",
		{ class: "small zone" },
		"Names are relative to the DNS zone ",
		h("code", null, zone.name),
		zone.host ? [`, hosted by ${zone.host}. `, consoleLink(zone)] : ". ",
		!zone.host && zone.name_servers.length > 0 && `Name servers: ${zone.name_servers.join(", ")}.`,
	);

/** One verdict: a problem leads, also for a verified domain. */
function lead(domain) {
	const { verdict, status } = domain;
	const standing = STANDING[status];
	if (status === "pending") return notice("deferred", standing);
	if (verdict.status === "problems")
		return notice("bounced", [h("b", null, verdict.text), h("p", { class: "small" }, standing)]);
	if (verdict.status === "unknown") return notice("deferred", `${standing} ${verdict.text}`);
	return notice("delivered", standing);
}

/** Records to publish, those with problems first. */
export const recordTable = (found) =>
	table("DNS records", COLUMNS, [...found].sort((one, other) => rank(one) - rank(other)).map(record), "dns");

function records(domain) {
	return fragment(
		lead(domain),
		h(
			"section",
			null,
			h(
				"div",
				{ class: "titled" },
				h("h2", null, "DNS records to publish"),
				button("Copy all as a zone file", () => copy(`${domain.records.map(zoneLine).join("\n")}\n`)),
			),
			zoneText(domain),
			recordTable(domain.records),
			h(
				"p",
				{ class: "quiet small checked" },
				"Last check: ",
				ago(domain.dns?.checked_at, "not yet"),
				". DNS is checked every ten minutes until all records are correct, then hourly; ",
				"less often while it does not respond, and in the sandbox only on request.",
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
		state.replaceChildren(standingBadge(found));
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
	if (known) show(known);
	else {
		// DNS may be slow, and the page does not wait for it. The list reports an unknown domain at once.
		get(address, page.signal).then(
			show,
			(error) => error.name !== "AbortError" && place.replaceChildren(errorText(error)),
		);
	}
	return fragment(
		head(shownName(name), {
			crumb: { href: "/dashboard/domains", title: "Domains" },
			badge: state,
			actions: [remove, check],
		}),
		place,
	);
}
