// Sample values of a template's placeholders: guessed from their names, and kept in this browser by template.

const MOST = 20_000; // characters kept for one template
const GUESSES = [
	[/mail/i, "ada@example.net"],
	[/url|link|href/i, "https://example.com/"],
	[/company|shop|organi[sz]ation/i, "Example Ltd"],
	[/product|item/i, "Tea, 250 g"],
	[/first.?name|^name$|user|customer|recipient/i, "Ada"],
	[/last.?name|surname/i, "Lovelace"],
	[/name/i, "Ada Lovelace"],
	[/code|otp|pin|token/i, "482913"],
	[/date|day|until|expires/i, "18 November 2026"],
	[/time/i, "14:30"],
	[/price|amount|total|sum|cost/i, "€ 19.90"],
	[/count|quantity|items/i, "3"],
	[/number|order|invoice|id$/i, "10042"],
	[/phone/i, "+44 20 7946 0000"],
	[/address|street|city/i, "12 Example Street, London"],
];

/** A plausible value for a placeholder; its own name if none is known. */
export const guess = (name) => GUESSES.find(([pattern]) => pattern.test(name))?.[1] ?? name;

/** The kept values of a template: {read, keep}. Without storage, values last as long as the page. */
export function keptSamples(alias) {
	const key = `template values ${alias}`;
	return {
		read() {
			try {
				const kept = JSON.parse(localStorage.getItem(key) ?? "{}");
				return kept && typeof kept === "object" && !Array.isArray(kept) ? kept : {};
			} catch {
				return {};
			}
		},
		keep(values) {
			const text = JSON.stringify(values);
			try {
				if (text.length <= MOST) localStorage.setItem(key, text);
			} catch {
				// no storage
			}
		},
	};
}
