// A bounce rate, marked if it is too high.
import { badge } from "./basics.js";
import { percent } from "./time.js";

export function rate(share) {
	if (!(share >= 0.05)) return percent(share);
	return share < 0.1 ? badge("deferred", `${percent(share)}, high`) : badge("bounced", `${percent(share)}, too high`);
}
