// A bar chart by hour or day, stacked by kind, its numbers on hover, on focus and in a table.
import { h, s } from "./dom.js";
import { number } from "./time.js";

const WIDTH = 1000;
const HEIGHT = 180;

/** A round number at or above the highest bar, so that the scale can be read. */
export function ceiling(highest) {
	const power = 10 ** Math.floor(Math.log10(Math.max(highest, 1)));
	return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10]
		.map((each) => each * power)
		.find((each) => each >= Math.max(highest, 4) && each % 2 === 0);
}

/**
 * Kinds are [field, name, class of the colour]; the one `behind` is drawn behind the others. A click on a bar, or Enter
 * on the one that is told, opens `link(field, bucket)`.
 */
export function chart(title, buckets, kinds, label, behind, link, go) {
	const stack = kinds.filter((kind) => kind !== behind);
	const sum = (each) => stack.reduce((all, [field]) => all + each[field], 0);
	const top = ceiling(Math.max(...buckets.map((each) => Math.max(sum(each), behind ? each[behind[0]] : 0))));
	const wide = WIDTH / buckets.length;
	const gap = Math.min(8, wide * 0.35);
	const words = (name, told) =>
		`${name}: ${kinds.map(([field, kind]) => `${number(told(field))} ${kind.toLowerCase()}`).join(", ")}`;
	const all = words("In all", (field) => buckets.reduce((total, each) => total + each[field], 0));
	const readout = h("p", { class: "readout small quiet", "aria-live": "polite" }, all);

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
	const marker = s("rect", { class: "marker", y: 0, width: wide, height: HEIGHT, visibility: "hidden" });
	let chosen = -1;
	function choose(at) {
		chosen = Math.max(-1, Math.min(buckets.length - 1, at));
		const each = buckets[chosen];
		marker.setAttribute("visibility", each ? "visible" : "hidden");
		marker.setAttribute("x", Math.max(0, chosen) * wide);
		readout.textContent = each ? words(label(each.start), (field) => each[field]) : all;
	}
	const drawing = s(
		"svg",
		{
			viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
			preserveAspectRatio: "none",
			role: "img",
			tabindex: "0",
			"aria-label": `${title}. ${all}. Left and right tell each bar${link ? ", Enter lists its messages" : ""}.`,
			cursor: link && "pointer",
			onmousemove: (event) => {
				const box = drawing.getBoundingClientRect();
				choose(Math.floor(((event.clientX - box.left) / box.width) * buckets.length));
			},
			onclick: (event) =>
				link && buckets[chosen] && go(link(event.target.dataset.kind ?? kinds[0][0], buckets[chosen])),
			onmouseleave: () => choose(-1),
			onblur: () => choose(-1),
			onkeydown: (event) => {
				if (event.key === "Enter") drawing.dispatchEvent(new Event("click"));
				if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
				event.preventDefault();
				choose(chosen < 0 ? buckets.length - 1 : chosen + (event.key === "ArrowRight" ? 1 : -1));
			},
		},
		[HEIGHT / 2, 0].map((y) => s("line", { class: "grid", x1: 0, x2: WIDTH, y1: y + 0.5, y2: y + 0.5 })),
		marker,
		buckets.map(bar),
	);
	const line = (name, texts) =>
		h(
			"div",
			{ class: name, "aria-hidden": "true" },
			texts.map((text) => h("span", null, text)),
		);
	const ends = [buckets[0], buckets[Math.floor(buckets.length / 2)], buckets.at(-1)];
	return h(
		"figure",
		{ class: "chart" },
		h(
			"div",
			{ class: "legend" },
			kinds.map(([, name, colour]) => h("span", { class: `key ${colour}` }, name)),
		),
		h("div", { class: "plot" }, line("scale", [top, top / 2, 0].map(number)), drawing),
		line(
			"axis",
			ends.map((each) => label(each.start)),
		),
		readout,
		numbers(title, buckets, kinds, label, link),
	);
}

/** The same as a table, built when it is first opened. */
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
		h("summary", null, busy.length ? "Show as a table" : "No mail in this time"),
	);
	return made;
}
