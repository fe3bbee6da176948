// Repeats the work that keeps a page up to date, while it is seen, and tells when the server does not answer.
import { h } from "./dom.js";

const PING = 1000; // milliseconds between two questions whether the server is there
const PATIENCE = 2000; // milliseconds that it may take for an answer

const lost = h("p", null, "Connection lost, retrying…");
const watched = new WeakMap(); // by the end of a page's stay: the work of that page

/** Does something again and again until `signal`, while the page is seen; at once when the server is back. */
export function every(signal, seconds, work) {
	let busy = false;
	const round = async () => {
		if (busy || document.hidden) return;
		busy = true;
		await work().catch(() => {}); // the next round may do better
		busy = false;
	};
	const timer = setInterval(round, seconds * 1000);
	signal.addEventListener("abort", () => clearInterval(timer));
	if (watched.has(signal)) watched.get(signal).push(round);
	else watch(signal, [round]);
}

function watch(signal, rounds) {
	watched.set(signal, rounds);
	let asking = false;
	const ask = async () => {
		if (asking || document.hidden) return;
		asking = true;
		let there = true;
		try {
			await fetch("/healthz", { method: "HEAD", signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]) });
		} catch {
			there = false;
		}
		asking = false;
		if (signal.aborted) return;
		if (!there) document.querySelector(".toasts").append(lost);
		else if (lost.isConnected) {
			lost.remove();
			rounds.forEach((round) => round());
		}
	};
	const timer = setInterval(ask, PING);
	signal.addEventListener("abort", () => {
		clearInterval(timer);
		lost.remove();
	});
}
