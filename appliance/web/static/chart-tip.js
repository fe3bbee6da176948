// Announces the bars of a chart one by one, in a tooltip and to screen readers, by mouse and arrow keys.
import { h, s, style } from "./dom.js";
import { number } from "./time.js";

/** Event handlers of a chart's drawing. */
export async function teller(drawing, buckets, kinds, label, link, go) {
	await style("chart-tip");
	const field = drawing.parentElement;
	const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
	const readout = h("p", { class: "gone readout", "aria-live": "polite" });
	const [, , width, height] = drawing.getAttribute("viewBox").split(" ");
	const wide = width / buckets.length;
	const marker = s("rect", { class: "marker", y: 0, width: wide, height, visibility: "hidden" });
	drawing.prepend(marker);
	field.append(tip, readout);
	let chosen = -1;

	const amount = (each, [kind, name]) => `${number(each[kind])} ${name.toLowerCase()}`;
	function choose(at) {
		chosen = Math.max(-1, Math.min(buckets.length - 1, at));
		const each = buckets[chosen];
		marker.setAttribute("visibility", each ? "visible" : "hidden");
		tip.hidden = !each;
		if (!each) return;
		marker.setAttribute("x", chosen * wide);
		readout.textContent = `${label(each.start)}: ${kinds.map((kind) => amount(each, kind)).join(", ")}`;
		tip.replaceChildren(
			h("b", null, label(each.start)),
			h(
				"ul",
				null,
				kinds.map(([kind, name, colour]) =>
					h("li", null, h("span", { class: `key ${colour}` }, name), h("span", null, number(each[kind]))),
				),
			),
		);
		const middle = ((chosen + 0.5) / buckets.length) * field.clientWidth;
		const room = field.clientWidth - tip.offsetWidth;
		const position = middle + 12 <= room ? middle + 12 : middle - 12 - tip.offsetWidth;
		tip.style.left = `${Math.max(0, Math.min(room, position))}px`;
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
	const events = {
		mousemove: (event) => choose(at(event)),
		mouseleave: () => choose(-1),
		blur: () => choose(-1),
		click(event) {
			choose(at(event));
			open(event.target.dataset.kind ?? kinds[0][0]);
		},
		keydown: (event) => keys[event.key]?.(),
	};
	return (event) => events[event.type](event);
}
