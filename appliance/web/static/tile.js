// Tiles: a number with its name, notes below it, and a sparkline.
import { h, s } from "./dom.js";

export const tiles = (...content) => h("dl", { class: "tiles" }, content);

/**
 * A tile. `href` links it; `notes` are lines below the number; `spark` are values for a sparkline, oldest first. The
 * last one is of a day or hour that has not ended: as a point it would look like a fall.
 */
export const tile = (name, value, { href, notes = [], spark, kind = "" } = {}) =>
	h(
		"div",
		{ class: `tile ${kind}` },
		h("dt", null, href ? h("a", { href }, name) : name),
		h("dd", null, value),
		notes.map((note) => note && h("dd", { class: "note" }, note)),
		spark?.slice(0, -1).some((each) => each > 0) &&
			h("dd", { class: "spark", "aria-hidden": "true" }, sparkline(spark.slice(0, -1))),
	);

/** A sparkline, newest on the right, scaled to `top`; `most` values fill its width. */
export function sparkline(values, top = Math.max(1, ...values), most = values.length) {
	const x = (at) => ((most - values.length + at) / Math.max(1, most - 1)) * 100;
	const points = values.map((value, at) => `${x(at).toFixed(1)},${(22 - (value / top) * 20).toFixed(1)}`);
	if (points.length === 1) points.unshift(`${x(-1).toFixed(1)},${points[0].split(",")[1]}`);
	return s(
		"svg",
		{ class: "trace", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
		s("polyline", { points: points.join(" ") }),
	);
}
