// Shows international domain names in their own script (RFC 3492). DNS, the API and copies keep the ASCII form.

const BASE = 36;
const LIMIT = 0x10ffff;

function adapted(delta, points, isFirst) {
	let rest = isFirst ? Math.floor(delta / 700) : delta >> 1;
	let k = 0;
	for (rest += Math.floor(rest / points); rest > 455; k += BASE) rest = Math.floor(rest / 35);
	return k + Math.floor((BASE * rest) / (rest + 38));
}

const digit = (code) => (code >= 48 && code <= 57 ? code - 22 : code >= 97 && code <= 122 ? code - 97 : BASE);

/** A label without its `xn--`; null if it is malformed. */
function decoded(text) {
	const end = text.lastIndexOf("-");
	const found = end > 0 ? [...text.slice(0, end)] : [];
	let [point, at, bias] = [128, 0, 72];
	for (let read = end + 1; read < text.length; at += 1) {
		const before = at;
		for (let weight = 1, k = BASE; ; k += BASE) {
			const value = digit(text.charCodeAt(read++));
			if (!(value < BASE)) return null;
			at += value * weight;
			const threshold = Math.min(26, Math.max(1, k - bias));
			if (value < threshold) break;
			weight *= BASE - threshold;
		}
		bias = adapted(at - before, found.length + 1, before === 0);
		point += Math.floor(at / (found.length + 1));
		at %= found.length + 1;
		if (point > LIMIT) return null;
		found.splice(at, 0, String.fromCodePoint(point));
	}
	return found.join("");
}

/** A domain, or an address, as people write it. A label that mixes scripts with Latin stays ASCII: it may deceive. */
export const shownName = (name) =>
	name.replace(/\bxn--([a-z0-9-]+)/g, (whole, label) => {
		const text = decoded(label);
		const isMixed = /[a-z]/.test(text ?? "") && /[^\p{Script=Latin}\p{Nd}\p{M}-]/u.test(text ?? "");
		return text === null || isMixed || !/^[\p{L}\p{M}\p{N}\u00b7\u30fb-]+$/u.test(text) ? whole : text;
	});
