// A stacked bar chart by hour or day, with its numbers in a tooltip and a table.
import { h, s } from "./dom.js";
import { number } from "./time.js";

const WIDTH = 1000;
const HEIGHT = 180;
const EVENTS = ["mousemove", "mouseleave", "click", "blur", "keydown"];

/** A round number at or above the highest bar. */
export function ceiling(highest) {
	const power = 10 ** Math.floor(Math.log10(Math.max(highest, 1)));
	return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10]
		.map((each) => each * power)
		.find((each) => each >= Math.max(highest, 4) && each % 2 === 0);
}

/** Marks of the scale, [percent, text]: starts of days for hours, and as many days (UTC) as fit. */
export function marks(buckets) {
	const count = buckets.length;
	const times = buckets.map((each) => new Date(each.start));
	const hourly = times[1] - times[0] < 8e7;
	const text = hourly ? { weekday: "short" } : { month: "short", timeZone: "UTC" };
	const has = (at) =>
		hourly ? !times[at].getHours() && at < count * 0.92 : (count - 1 - at) % Math.ceil(count / 8) === 0;
	const found = times.map((time, at) => [
		((at + (hourly ? 0 : 0.5)) / count) * 100,
		time.toLocaleDateString("en-GB", { day: "numeric", ...text }),
	]);
	return { hourly, marks: found.filter((_, at) => has(at)) };
}

/**
 * Kinds are [field, name, colour class]; the kind `behind` is drawn behind the others. A click on a bar, or Enter
 * on the current one, opens `link(field, bucket)`.
 */
export function chart(title, buckets, kinds, label, behind, link, go) {
	const stack = kinds.filter((kind) => kind !== behind);
	const sum = (each) => stack.reduce((all, [field]) => all + each[field], 0);
	const top = ceiling(Math.max(...buckets.map((each) => Math.max(sum(each), behind ? each[behind[0]] : 0))));
	const wide = WIDTH / buckets.length;
	const gap = Math.min(8, wide * 0.35);
	const scale = marks(buckets);
	const line = (x1, x2, y1, y2) => s("line", { class: "grid", x1, x2, y1, y2 });
	const all = kinds.map(
		([field, name]) => `${number(buckets.reduce((total, each) => total + each[field], 0))} ${name.toLowerCase()}`,
	);

	function bar(each, at) {
		let low = 0;
		const part = ([field, , colour], margin) => {
			const height = (each[field] / top) * HEIGHT;
			const place = { x: at * wide + margin / 2, y: HEIGHT - low - height, width: wide - margin, height };
			return height > 0 && s("rect", { class: `fill ${colour}`, ...place, "data-kind": field });
		};
		return [
			behind && part(behind, 0),
			...stack.map((kind) => {
				const drawn = part(kind, gap);
				low += (each[kind[0]] / top) * HEIGHT;
				return drawn;
			}),
		];
	}
	// The tooltip code is loaded when the chart is first pointed at or focused; no event is lost.
	let teller;
	const tell = (event) => {
		if (/^Arrow[LR]/.test(event.key)) event.preventDefault();
		teller ??= import("./chart-tip.js").then((tip) => tip.teller(drawing, buckets, kinds, label, link, go));
		teller.then((told) => told(event));
	};
	const enter = link ? ", Enter lists its messages" : "";
	const drawing = s(
		"svg",
		{
			viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
			preserveAspectRatio: "none",
			role: "img",
			tabindex: "0",
			"aria-label": `${title}. Total: ${all.join(", ")}. Left and right arrow read each bar${enter}.`,
			cursor: link && "pointer",
			...Object.fromEntries(EVENTS.map((each) => [`on${each}`, tell])),
		},
		[HEIGHT / 2, 0].map((y) => line(0, WIDTH, y + 0.5, y + 0.5)),
		scale.hourly && scale.marks.map(([x]) => line(x * 10, x * 10, 0, HEIGHT)),
		buckets.map(bar),
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
				[top, top / 2, 0].map((each) => h("span", null, number(each))),
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
		numbers(title, buckets, kinds, label, link),
	);
}

/** The same as a table, built when first opened. */
function numbers(title, buckets, kinds, label, link) {
	const busy = buckets.filter((each) => kinds.some(([field]) => each[field]));
	const made = h(
		"details",
		{
			ontoggle: async () => {
				if (made.childElementCount === 1)
					made.append((await import("./chart-table.js")).chartTable(title, busy, kinds, label, link));
			},
		},
		h("summary", null, busy.length ? "Show as table" : "No mail in this period"),
	);
	return made;
}
