// A rate as the server judges it: grey without enough mail, marked if it is high.
import { badge } from "./basics.js";
import { h } from "./dom.js";
import { percent } from "./time.js";

export function rate(share, mark) {
	const text = percent(share);
	if (mark === "too_few") return h("span", { class: "quiet" }, text);
	if (mark === "good") return text;
	return mark === "high" ? badge("deferred", `${text}, high`) : badge("bounced", `${text}, too high`);
}
