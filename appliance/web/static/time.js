// Formats times and numbers in the viewer's time zone, with the exact UTC on hover.
import { h } from "./dom.js";

const format = (options) => new Intl.DateTimeFormat("en-GB", { hourCycle: "h23", ...options });
const CLOCK = format({ timeStyle: "medium" });
const UTC_DAY = format({ day: "numeric", month: "short", timeZone: "UTC" });
const DAY_MINUTE = format({ day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const FULL = format({ dateStyle: "medium", timeStyle: "medium" });
const NUMBER = new Intl.NumberFormat("en");

export const number = (value) => NUMBER.format(value);
/** A share with one decimal; a share that would round to 0.0 % is below 0.1 %. */
export const percent = (share) =>
	share === null ? "–" : share > 0 && share < 0.0005 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`;
export const count = (value, one, many) => `${number(value)} ${value === 1 ? one : many}`;
/** A day of the statistics, midnight to midnight UTC. */
export const utcDay = (iso) => `${UTC_DAY.format(new Date(iso))} UTC`;
export const hour = (iso) => DAY_MINUTE.format(new Date(iso));

const OFFSET = new Intl.DateTimeFormat("en-GB", { timeZoneName: "shortOffset" });

/** The viewer's time zone: "Europe/Berlin, UTC+1". */
export function zone() {
	const { value } = OFFSET.formatToParts().find((part) => part.type === "timeZoneName");
	const offset = value.replace("GMT", "UTC");
	const { timeZone } = OFFSET.resolvedOptions();
	return timeZone === "UTC" || timeZone === offset ? offset : `${timeZone}, ${offset}`;
}

/** A duration in its one or two largest units. */
export function span(milliseconds) {
	if (milliseconds === null) return "–";
	if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
	const seconds = milliseconds / 1000;
	if (seconds < 10) return `${seconds.toFixed(1)} s`;
	if (seconds < 60) return `${Math.round(seconds)} s`;
	const minutes = Math.floor(seconds / 60);
	const both = (large, small) => large + (parseInt(small) ? ` ${small}` : "");
	if (minutes < 60) return both(`${minutes} min`, minutes < 10 && `${Math.floor(seconds % 60)} s`);
	const hours = Math.floor(minutes / 60);
	return hours < 24
		? both(`${hours} h`, `${minutes % 60} min`)
		: both(`${Math.floor(hours / 24)} d`, `${hours % 24} h`);
}

const exact = (iso) => `${iso.replace("T", " ").replace("Z", "")} UTC`;

function element(iso, text, relative) {
	return h("time", { datetime: iso, title: exact(iso), "data-relative": relative }, text);
}

/** A moment: the time if it was today, otherwise also the day. */
export function when(iso, none = "–") {
	if (!iso) return none;
	const moment = new Date(iso);
	const today = moment.toDateString() === new Date().toDateString();
	return element(
		iso,
		(today ? CLOCK : moment.getFullYear() === new Date().getFullYear() ? DAY_MINUTE : FULL).format(moment),
	);
}

function distance(iso) {
	const away = Date.parse(iso) - Date.now();
	if (away > 1000) return `in ${span(away)}`;
	if (away > -5000) return "now";
	return `${span(Math.round(-away / 1000) * 1000)} ago`;
}

/** A relative time that stays current while shown. */
export const ago = (iso, none = "never") => (iso ? element(iso, distance(iso), true) : none);

setInterval(() => {
	for (const shown of document.querySelectorAll("time[data-relative]")) {
		const text = distance(shown.dateTime);
		if (shown.textContent !== text) shown.textContent = text;
	}
}, 1000);
