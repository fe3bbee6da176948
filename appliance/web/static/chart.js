// A bar chart by hour or day, stacked by status, its numbers on hover, on focus and in a table.
import { h, s } from "./dom.js";
import { count, number } from "./time.js";

const WIDTH = 1000;
const HEIGHT = 180;
const KINDS = [
	["delivered", "Delivered"],
	["bounced", "Bounced"],
	["failed", "Failed"],
];

const words = (label, each) =>
	`${label}: ${count(each.sent, "recipient", "recipients")} sent, ${number(each.delivered)} delivered, ` +
	`${number(each.bounced)} bounced, ${number(each.failed)} failed`;

/** A round number at or above the highest bar, so that the scale can be read. */
export function ceiling(highest) {
	const power = 10 ** Math.floor(Math.log10(Math.max(highest, 1)));
	return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10]
		.map((each) => each * power)
		.find((each) => each >= Math.max(highest, 4) && each % 2 === 0);
}

/** The chart; `label` tells the time of a bucket. */
export function chart(title, buckets, label) {
	const top = ceiling(
		Math.max(...buckets.map((each) => Math.max(each.sent, each.delivered + each.bounced + each.failed))),
	);
	const wide = WIDTH / buckets.length;
	const gap = Math.min(8, wide * 0.35);
	const y = (value) => (value / top) * HEIGHT;
	const total = buckets.reduce((sum, each) => ({
		sent: sum.sent + each.sent,
		delivered: sum.delivered + each.delivered,
		bounced: sum.bounced + each.bounced,
		failed: sum.failed + each.failed,
	}));
	const all = words("In all", total);
	const readout = h("p", { class: "readout small quiet", "aria-live": "polite" }, all);

	function bar(each, at) {
		let low = 0;
		const sent = s("rect", {
			class: "bar-sent",
			x: at * wide,
			y: HEIGHT - y(each.sent),
			width: wide,
			height: y(each.sent),
		});
		return [
			each.sent > 0 && sent,
			...KINDS.map(([kind]) => {
				const high = y(each[kind]);
				if (!high) return null;
				low += high;
				return s("rect", {
					class: `bar-${kind}`,
					x: at * wide + gap / 2,
					y: HEIGHT - low,
					width: wide - gap,
					height: high,
				});
			}),
		];
	}
	const marker = s("rect", { class: "marker", y: 0, width: wide, height: HEIGHT, visibility: "hidden" });
	let chosen = -1;
	function choose(at) {
		chosen = Math.max(-1, Math.min(buckets.length - 1, at));
		marker.setAttribute("visibility", chosen < 0 ? "hidden" : "visible");
		marker.setAttribute("x", Math.max(0, chosen) * wide);
		readout.textContent = chosen < 0 ? all : words(label(buckets[chosen].start), buckets[chosen]);
	}
	const drawing = s(
		"svg",
		{
			viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
			preserveAspectRatio: "none",
			role: "img",
			tabindex: "0",
			"aria-label": `${title}. ${all}. Left and right tell each bar.`,
			onmousemove: (event) => {
				const box = drawing.getBoundingClientRect();
				choose(Math.floor(((event.clientX - box.left) / box.width) * buckets.length));
			},
			onmouseleave: () => choose(-1),
			onblur: () => choose(-1),
			onkeydown: (event) => {
				if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
				event.preventDefault();
				choose(chosen < 0 ? buckets.length - 1 : chosen + (event.key === "ArrowRight" ? 1 : -1));
			},
		},
		[0.5, 1].map((share) =>
			s("line", {
				class: "grid",
				x1: 0,
				x2: WIDTH,
				y1: HEIGHT - share * HEIGHT + 0.5,
				y2: HEIGHT - share * HEIGHT + 0.5,
			}),
		),
		marker,
		buckets.map(bar),
	);

	const middle = buckets[Math.floor(buckets.length / 2)];
	return h(
		"figure",
		{ class: "chart" },
		h(
			"div",
			{ class: "legend" },
			h("span", { class: "key sent" }, "Sent"),
			KINDS.map(([kind, name]) => h("span", { class: `key ${kind}` }, name)),
		),
		h(
			"div",
			{ class: "plot" },
			h(
				"div",
				{ class: "scale", "aria-hidden": "true" },
				h("span", null, number(top)),
				h("span", null, number(top / 2)),
				h("span", null, "0"),
			),
			drawing,
		),
		h(
			"div",
			{ class: "axis", "aria-hidden": "true" },
			h("span", null, label(buckets[0].start)),
			h("span", null, label(middle.start)),
			h("span", null, label(buckets.at(-1).start)),
		),
		readout,
		numbers(title, buckets, label),
	);
}

/** The same as a table, built when it is first opened. */
function numbers(title, buckets, label) {
	const busy = buckets.filter((each) => each.sent || each.delivered || each.bounced || each.failed);
	const made = h(
		"details",
		{
			ontoggle: async () => {
				if (made.childElementCount === 1)
					made.append((await import("./chart-table.js")).chartTable(title, busy, label));
			},
		},
		h("summary", null, busy.length ? "Show as a table" : "No mail in this time"),
	);
	return made;
}
