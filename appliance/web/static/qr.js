// Draws a QR code (ISO/IEC 18004): bytes, error correction level L, versions 1 to 10, up to 271 bytes.
import { s } from "./dom.js";

// Per version: total codewords, error correction codewords per block, and blocks.
const VERSIONS = [
	[26, 7, 1],
	[44, 10, 1],
	[70, 15, 1],
	[100, 20, 1],
	[134, 26, 1],
	[172, 18, 2],
	[196, 20, 2],
	[242, 24, 2],
	[292, 30, 2],
	[346, 18, 4],
];
const QUIET = 4; // modules around it

// ---- codewords: arithmetic in GF(256) modulo x^8 + x^4 + x^3 + x^2 + 1

function multiply(a, b) {
	let product = 0;
	for (let bit = 7; bit >= 0; bit--) {
		product = (product << 1) ^ ((product >> 7) * 0x11d);
		product ^= ((b >> bit) & 1) * a;
	}
	return product;
}

/** The error correction codewords of a block (Reed-Solomon). */
function correction(block, count) {
	const divisor = Array(count).fill(0);
	divisor[count - 1] = 1;
	for (let root = 1, step = 0; step < count; step++, root = multiply(root, 2)) {
		for (let at = 0; at < count; at++) divisor[at] = multiply(divisor[at], root) ^ (divisor[at + 1] ?? 0);
	}
	const rest = Array(count).fill(0);
	for (const byte of block) {
		const factor = byte ^ rest.shift();
		rest.push(0);
		divisor.forEach((each, at) => (rest[at] ^= multiply(each, factor)));
	}
	return rest;
}

/** Data and error correction of all blocks, interleaved. */
function codewords(bytes, version) {
	const [total, each, blocks] = VERSIONS[version - 1];
	const room = total - each * blocks;
	const bits = [];
	const put = (value, length) => {
		for (let bit = length - 1; bit >= 0; bit--) bits.push((value >> bit) & 1);
	};
	put(4, 4); // bytes
	put(bytes.length, version < 10 ? 8 : 16);
	for (const byte of bytes) put(byte, 8);
	put(0, Math.min(4, room * 8 - bits.length));
	put(0, -bits.length & 7);
	for (let pad = 0xec; bits.length < room * 8; pad ^= 0xfd) put(pad, 8);
	const data = Array.from({ length: room }, (_, at) => parseInt(bits.slice(at * 8, at * 8 + 8).join(""), 2));
	const short = Math.floor(room / blocks);
	const longer = room % blocks; // the last blocks have one more codeword
	const parts = [];
	for (let block = 0, from = 0; block < blocks; block++) {
		const length = short + (block >= blocks - longer ? 1 : 0);
		parts.push(data.slice(from, from + length));
		from += length;
	}
	const woven = [];
	for (let at = 0; at <= short; at++) for (const part of parts) if (at < part.length) woven.push(part[at]);
	const corrections = parts.map((part) => correction(part, each));
	for (let at = 0; at < each; at++) for (const part of corrections) woven.push(part[at]);
	return woven;
}

// ---- modules

/** The centres of the alignment patterns, in either direction. */
function alignment(version) {
	if (version === 1) return [];
	const last = 4 * version + 10;
	return version < 7 ? [6, last] : [6, 6 + (last - 6) / 2, last];
}

/** The value with its check bits (BCH). */
function checked(value, bits, generator) {
	let rest = value;
	for (let step = 0; step < bits; step++) rest = (rest << 1) ^ ((rest >> (bits - 1)) * generator);
	return (value << bits) | rest;
}

/** The modules, as rows of booleans. Mask 0 is enough, because the text is as good as random. */
export function modules(text) {
	const bytes = new TextEncoder().encode(text);
	const version =
		VERSIONS.findIndex(([total, each, blocks], at) => bytes.length + (at < 9 ? 2 : 3) <= total - each * blocks) + 1;
	if (!version) return null;
	const size = 4 * version + 17;
	const made = Array.from({ length: size }, () => Array(size).fill(null));
	const set = (x, y, dark) => {
		if (x >= 0 && y >= 0 && x < size && y < size) made[y][x] = Boolean(dark);
	};
	const square = (x, y, reach, light) => {
		for (let dy = -reach; dy <= reach; dy++)
			for (let dx = -reach; dx <= reach; dx++) {
				const ring = Math.max(Math.abs(dx), Math.abs(dy));
				set(x + dx, y + dy, !light.includes(ring));
			}
	};
	for (let at = 0; at < size; at++) {
		set(at, 6, at % 2 === 0);
		set(6, at, at % 2 === 0);
	}
	const centres = alignment(version);
	for (const x of centres)
		for (const y of centres) {
			const finder = (x === 6 && y === 6) || (x === 6 && y === size - 7) || (x === size - 7 && y === 6);
			if (!finder) square(x, y, 2, [1]);
		}
	for (const [x, y] of [
		[3, 3],
		[size - 4, 3],
		[3, size - 4],
	])
		square(x, y, 4, [2, 4]);
	const format = checked(0b01000, 10, 0x537) ^ 0x5412; // level L, mask 0
	for (let bit = 0; bit < 15; bit++) {
		const dark = (format >> bit) & 1;
		if (bit < 6) set(8, bit, dark);
		else if (bit < 8) set(8, bit + 1, dark);
		else if (bit === 8) set(7, 8, dark);
		else set(14 - bit, 8, dark);
		if (bit < 8) set(size - 1 - bit, 8, dark);
		else set(8, size - 15 + bit, dark);
	}
	set(8, size - 8, true);
	if (version >= 7) {
		const number = checked(version, 12, 0x1f25);
		for (let bit = 0; bit < 18; bit++) {
			const [near, far] = [Math.floor(bit / 3), size - 11 + (bit % 3)];
			set(near, far, (number >> bit) & 1);
			set(far, near, (number >> bit) & 1);
		}
	}
	const data = codewords(bytes, version);
	let at = 0;
	for (let right = size - 1, up = true; right > 0; right -= 2, up = !up) {
		if (right === 6) right--;
		for (let step = 0; step < size; step++) {
			const y = up ? size - 1 - step : step;
			for (const x of [right, right - 1]) {
				if (made[y][x] !== null) continue;
				const bit = ((data[at >> 3] ?? 0) >> (7 - (at & 7))) & 1;
				made[y][x] = Boolean(bit ^ ((x + y) % 2 === 0 ? 1 : 0));
				at++;
			}
		}
	}
	return made;
}

/** The drawing; null if the text is too long. */
export function qr(text, name) {
	const rows = modules(text);
	if (!rows) return null;
	const size = rows.length + 2 * QUIET;
	const dark = rows.flatMap((row, y) => row.map((each, x) => (each ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : "")));
	return s(
		"svg",
		{
			class: "qr",
			role: "img",
			"aria-label": name,
			width: 208,
			height: 208,
			viewBox: `0 0 ${size} ${size}`,
			"shape-rendering": "crispEdges",
		},
		s("rect", { width: size, height: size, fill: "#fff" }),
		s("path", { d: dark.join(""), fill: "#000" }),
	);
}
