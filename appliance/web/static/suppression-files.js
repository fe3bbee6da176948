// Imports and exports suppressions as CSV, in parts, with a report of skipped lines.
import { post } from "./api.js";
import { h, toast } from "./dom.js";
import { save } from "./message-body.js";
import { button, errorText, table } from "./pieces.js";
import { count, number } from "./time.js";

const PART_LINES = 500; // per request
const PART_LENGTH = 20_000; // characters per request; JSON and UTF-8 may triple them
const FILE_SIZE = 20e6; // bytes
const SHOWN = 100; // skipped lines to show
const RISKY = /^(?:[\t\r\n]|\s*[=+@-])/; // spreadsheets would evaluate cells that start like this

/** Parts that fit one request: [number of the first line, text]. Each starts with the header row, if any. */
export function parts(text) {
	const lines = text.split(/\r\n|\r|\n/);
	const heading = lines[0].includes("@") ? null : lines[0];
	const found = [];
	let part = [];
	let length = 0;
	let start = heading === null ? 1 : 2;
	const cut = (next) => {
		if (part.length) found.push([start, (heading === null ? part : [heading, ...part]).join("\n")]);
		part = [];
		length = 0;
		start = next;
	};
	for (const [index, line] of lines.entries()) {
		if (index === 0 && heading !== null) continue;
		const kept = line.slice(0, PART_LENGTH / 2); // too long: the server reports it
		if (part.length === PART_LINES || length + kept.length > PART_LENGTH) cut(index + 1);
		part.push(kept);
		length += kept.length + 1;
	}
	cut(0);
	return { heading: heading !== null, found };
}

/** Send one part, and wait if rate limited. */
async function sent(csv) {
	for (;;) {
		try {
			return await post("/v1/suppressions/import", { csv });
		} catch (error) {
			if (error.status !== 429 && error.status !== 503) throw error;
			await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 1) * 1000));
		}
	}
}

async function importText(text, tell) {
	const { heading, found } = parts(text);
	const total = { imported: 0, listed: 0, repeated: 0, skipped: [] };
	for (const [at, [start, csv]] of found.entries()) {
		tell(at / found.length);
		const told = await sent(csv);
		total.imported += told.imported;
		total.listed += told.listed_already;
		total.repeated += told.repeated;
		// Every part begins with the header row, which counts once.
		for (const each of told.skipped.filter(({ line }) => line > 1 || !heading || at === 0))
			total.skipped.push({ line: start + each.line - (heading ? 2 : 1), error: each.error });
	}
	return total;
}

function report(total) {
	const rows = total.skipped.slice(0, SHOWN).map((each) => [number(each.line), h("bdi", null, each.error)]);
	return [
		h(
			"p",
			{ role: "status" },
			`${count(total.imported, "address", "addresses")} imported, ${number(total.listed)} already listed, ` +
				(total.repeated ? `${number(total.repeated)} repeated in the file, ` : "") +
				`${count(total.skipped.length, "line", "lines")} skipped.`,
		),
		rows.length > 0 && table("Skipped lines", [{ title: "Line" }, { title: "Why", class: "break" }], rows),
		total.skipped.length > SHOWN && h("p", { class: "quiet" }, `The first ${SHOWN} are shown.`),
	];
}

/** Ask for a file, import it, and report the result. */
export function importFile(page, dialog) {
	dialog("Import suppressions", (close) => {
		const file = h("input", { type: "file", id: "csv-file", accept: ".csv,.txt,text/csv,text/plain" });
		const told = h("div", { class: "stack" });
		const work = async () => {
			const [chosen] = file.files;
			if (!chosen) return told.replaceChildren(errorText({ message: "Choose a file first." }));
			if (chosen.size > FILE_SIZE)
				return told.replaceChildren(errorText({ message: "The file is larger than 20 MB." }));
			const tell = (share) => told.replaceChildren(h("progress", { max: "1", value: share, "aria-label": "Imported" }));
			told.replaceChildren(...[report(await importText(await chosen.text(), tell))].flat().filter(Boolean));
			start.hidden = true;
		};
		const start = button("Import file", work, "primary");
		return [
			h("p", { class: "quiet" }, "One address per line, or CSV with a header row as other email services export it."),
			h("div", { class: "field" }, h("label", { for: "csv-file" }, "File"), file),
			told,
			h(
				"div",
				{ class: "actions" },
				button("Close", () => (close(), page.reload())),
				start,
			),
		];
	});
}

export const cell = (text) => `"${(RISKY.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

/** Export the whole list, as filtered now. */
export async function exportFile(load, made) {
	const lines = ["address,reason,origin,created_at"];
	let cursor;
	do {
		const { items, next } = await load(cursor);
		for (const each of items)
			if (!each.tag && !each.template)
				lines.push([cell(each.address), cell(each.reason), each.origin, each.created_at].join(","));
		made.textContent = `Exporting ${number(lines.length - 1)}…`;
		cursor = next;
	} while (cursor);
	made.textContent = "Export CSV";
	save(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }), "suppressions.csv");
	toast(`${count(lines.length - 1, "address", "addresses")} exported`);
}
