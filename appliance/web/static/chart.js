// A chart by hour or day: stacked bars, or lines, with the numbers in a tooltip and a table. It reads by mouse, touch
// and keyboard.
import { h, s } from "./dom.js";
import { table } from "./pieces.js";
import { number, span } from "./time.js";

const WIDTH = 1000;
const HEIGHT = 144;
const SLIM = 26; // widest bar
const EVENTS = ["pointermove", "pointerleave", "pointerdown", "click", "focus", "blur", "keydown"];

/** A round number at or above the highest bar; of counts, also its half is whole. */
export function ceiling(highest, whole = true) {
	const least = whole ? Math.max(highest, 4) : highest;
	const power = 10 ** Math.floor(Math.log10(least));
	return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10]
		.map((each) => each * power)
		.find((each) => each >= least && (!whole || each % 2 === 0));
}

// Milliseconds that the text of a length of time shows exactly, as it does their halves.
const SPANS = [1, 2, 4, 10, 20, 60, 120, 240, 600, 1200, 3600].map((seconds) => seconds * 1000);
const HOUR = 3.6e6;

/** The same for lengths of time: whole seconds, minutes or hours. */
export const timeCeiling = (highest) =>
	highest <= 500 ? ceiling(highest, false) : (SPANS.find((each) => each >= highest) ?? ceiling(highest / HOUR) * HOUR);

/** Marks of the scale, [percent, text]: starts of days for hours, and as many days (UTC) as fit. */
export function marks(buckets) {
	const count = buckets.length;
	const times = buckets.map((each) => new Date(each.start));
	const hourly = times[1] - times[0] < 8e7;
	const text = hourly ? { weekday: "short" } : { month: "short", timeZone: "UTC" };
	const has = (at) =>
		hourly ? !times[at].getHours() && at < count * 0.92 : (count - 1 - at) % Math.ceil(count / 8) === 0;
	const format = new Intl.DateTimeFormat("en-GB", { day: "numeric", ...text });
	const found = times.map((time, at) => has(at) && [((at + (hourly ? 0 : 0.5)) / count) * 100, format.format(time)]);
	return { hourly, marks: found.filter(Boolean) };
}

/** The rectangles of one bucket, from the bottom; `behind` is drawn first. */
function bar(bucket, at, { buckets, stack, behind, top }) {
	const room = WIDTH / buckets.length;
	const width = Math.min(SLIM, room * 0.7);
	let low = 0;
	const part = ([field, , colour]) => {
		const height = (bucket[field] / top) * HEIGHT;
		const place = { x: at * room + (room - width) / 2, y: HEIGHT - low - height, width, height };
		return height > 0 && s("rect", { class: `fill ${colour}`, ...place, "data-kind": field });
	};
	return [
		behind && part(behind),
		...stack.map((kind) => {
			const drawn = part(kind);
			low += (bucket[kind[0]] / top) * HEIGHT;
			return drawn;
		}),
	];
}

/** One kind as a line; a bucket without a value interrupts it, and one between two such is a dot. */
function line([field, , colour], { buckets, top }) {
	const room = WIDTH / buckets.length;
	let moved = true;
	const steps = buckets.map((bucket, at) => {
		if (bucket[field] === null) return (moved = true) && "";
		const step = `${moved ? "M" : "L"}${(at + 0.5) * room} ${HEIGHT - (bucket[field] / top) * HEIGHT}h0`;
		moved = false;
		return step;
	});
	return s("path", { class: `line ${colour}`, d: steps.join(" ") });
}

/**
 * Kinds are [field, name, colour class]; the kind `behind` is drawn behind the others. A click on a bar, a second
 * touch, or Enter on the current one, opens `link(field, bucket)` with `go`. With `lines`, each kind is a line.
 * `format` writes a value.
 */
export function chart(title, buckets, kinds, label, behind, link, go, { lines = false, format = number } = {}) {
	const stack = kinds.filter((kind) => kind !== behind);
	const sum = (each) => stack.reduce((all, [field]) => all + each[field], 0);
	const highest = (each) =>
		lines ? Math.max(...kinds.map(([field]) => each[field] ?? 0)) : Math.max(sum(each), behind ? each[behind[0]] : 0);
	const most = Math.max(...buckets.map(highest));
	const top = format === number ? ceiling(most) : format === span ? timeCeiling(most || 1) : ceiling(most || 1, false);
	const drawn = { buckets, kinds, stack, behind, top, label, link, go, format };
	const scale = marks(buckets);
	const grid = (x1, x2, y1, y2) => s("line", { class: "grid", x1, x2, y1, y2 });
	const all = kinds.map(
		([field, name]) => `${number(buckets.reduce((total, each) => total + each[field], 0))} ${name.toLowerCase()}`,
	);
	const total = lines ? "" : `. Total: ${all.join(", ")}`;
	const enter = link ? ", Enter lists its messages" : "";
	let reader;
	const read = (event) => (reader ??= bars(drawing, drawn))(event);
	const drawing = s(
		"svg",
		{
			viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
			preserveAspectRatio: "none",
			role: "img",
			tabindex: "0",
			"aria-label": `${title}${total}. Left and right arrow read each ${lines ? "point" : "bar"}${enter}.`,
			cursor: link && "pointer",
			...Object.fromEntries(EVENTS.map((each) => [`on${each}`, read])),
		},
		[HEIGHT / 2, 0].map((y) => grid(0, WIDTH, y + 0.5, y + 0.5)),
		scale.hourly && scale.marks.map(([x]) => grid(x * 10, x * 10, 0, HEIGHT)),
		lines ? kinds.map((kind) => line(kind, drawn)) : buckets.map((each, at) => bar(each, at, drawn)),
	);
	const anchor = scale.hourly ? "start" : "middle";
	return h(
		"figure",
		{ class: "chart" },
		h(
			"div",
			{ class: "legend" },
			kinds.map(([, name, colour]) => h("span", { class: `key ${colour}` }, name)),
			h("span", { class: "scope" }, title),
		),
		h(
			"div",
			{ class: "plot" },
			h(
				"div",
				{ class: "scale", "aria-hidden": "true" },
				[format(top), format(top / 2), "0"].map((each) => h("span", null, each)),
			),
			h(
				"div",
				{ class: "field" },
				drawing,
				s(
					"svg",
					{ class: "axis", "aria-hidden": "true", "text-anchor": anchor },
					scale.marks.map(([x, text]) => s("text", { x: `${x}%`, y: 16 }, text)),
				),
			),
		),
		numbers(title, drawn),
	);
}

/** Reads the bars out one by one, in a tooltip and to screen readers. Returns the handler of all events. */
function bars(drawing, { buckets, kinds, label, link, go, format }) {
	const field = drawing.parentElement;
	const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
	const readout = h("p", { class: "gone readout", "aria-live": "polite" });
	const room = WIDTH / buckets.length;
	const marker = s("rect", { class: "marker", y: 0, width: room, height: HEIGHT, visibility: "hidden" });
	drawing.prepend(marker);
	field.append(tip, readout);
	let chosen = -1;
	let touched = -1; // the bar that was shown before this touch

	const value = (each, kind) => (each[kind] === null ? "–" : format(each[kind]));
	function show(at) {
		const each = buckets[at];
		marker.setAttribute("visibility", each ? "visible" : "hidden");
		tip.hidden = !each;
		if (!each) return;
		marker.setAttribute("x", at * room);
		const words = kinds.map(([kind, name]) => `${value(each, kind)} ${name.toLowerCase()}`);
		readout.textContent = `${label(each.start)}: ${words.join(", ")}`;
		tip.replaceChildren(
			h("b", null, label(each.start)),
			h(
				"ul",
				null,
				kinds.map(([kind, name, colour]) =>
					h("li", null, h("span", { class: `key ${colour}` }, name), h("span", null, value(each, kind))),
				),
			),
		);
		const middle = ((at + 0.5) / buckets.length) * field.clientWidth;
		const free = field.clientWidth - tip.offsetWidth;
		const position = middle + 12 <= free ? middle + 12 : middle - 12 - tip.offsetWidth;
		tip.style.left = `${Math.max(0, Math.min(free, position))}px`;
	}
	function choose(at) {
		chosen = Math.max(-1, Math.min(buckets.length - 1, at));
		show(chosen);
	}
	const at = (event) => {
		const box = drawing.getBoundingClientRect();
		return Math.floor(((event.clientX - box.left) / box.width) * buckets.length);
	};
	const open = (kind) => link && buckets[chosen] && go(link(kind, buckets[chosen]));
	const keys = {
		ArrowLeft: () => choose(chosen < 0 ? buckets.length - 1 : Math.max(0, chosen - 1)),
		ArrowRight: () => choose(chosen < 0 ? buckets.length - 1 : chosen + 1),
		Enter: () => open(kinds[0][0]),
		Escape: () => choose(-1),
	};
	const isTouch = (event) => event.pointerType === "touch";
	const events = {
		pointerdown(event) {
			touched = isTouch(event) ? chosen : -1;
			choose(at(event));
		},
		pointermove: (event) => choose(at(event)),
		pointerleave: (event) => isTouch(event) || choose(-1),
		focus: () => drawing.matches(":focus-visible") && chosen < 0 && show(buckets.length - 1),
		blur: () => choose(-1),
		click(event) {
			if (!isTouch(event) || touched === chosen) open(event.target.dataset.kind ?? kinds[0][0]);
		},
		keydown(event) {
			if (/^Arrow[LR]/.test(event.key)) event.preventDefault();
			keys[event.key]?.();
		},
	};
	return (event) => events[event.type](event);
}

/** The same as a table, built when first opened. */
function numbers(title, { buckets, kinds, label, link, format }) {
	const busy = buckets.filter((each) => kinds.some(([field]) => each[field]));
	const columns = [{ title: "From" }, ...kinds.map(([, name]) => ({ title: name, class: "number" }))];
	const text = (each, field) => (each[field] === null ? "–" : format(each[field]));
	const cell = (each, field) =>
		link && each[field] ? h("a", { href: link(field, each) }, text(each, field)) : text(each, field);
	const row = (each) => [label(each.start), ...kinds.map(([field]) => cell(each, field))];
	const made = h(
		"details",
		{ ontoggle: () => made.childElementCount === 1 && made.append(table(title, columns, busy.map(row))) },
		h("summary", null, busy.length ? "Show as table" : "No mail in this period"),
	);
	return made;
}
