// Repeats the work that keeps a page up to date, while it is seen, and tells when the server does not answer.
import { fresh, stream } from "./api.js";
import { h } from "./dom.js";

const BEAT = 1000; // milliseconds between two bytes of the stream
const PATIENCE = 2000; // milliseconds that it may take for one, or for an answer
const SLOWEST = 60; // seconds between two rounds while nothing changes
const NEWS = 58; // a colon in the stream: mail was accepted

const lost = h("p", null, "Connection lost, retrying…");
const watched = new WeakMap(); // by the end of a page's stay: what brings its rounds forward

/** Does something again and again until `signal`, while the page is seen; it may give the seconds to the next time. */
export function every(signal, seconds, work) {
	let timer;
	let busy = false;
	let wait = seconds;
	const later = (time, first = time) => {
		wait = time;
		clearTimeout(timer);
		if (!signal.aborted) timer = setTimeout(round, first * 1000);
	};
	async function round() {
		if (document.hidden) return later(seconds);
		const before = fresh();
		busy = true;
		const wanted = await work().catch(() => {}); // the next round may do better
		busy = false;
		later(typeof wanted === "number" ? wanted : fresh() > before ? seconds : Math.min(wait * 2, SLOWEST));
	}
	later(seconds);
	if (!watched.has(signal)) watch(signal);
	watched.get(signal).push((now) => !busy && (now || wait > seconds) && later(seconds, now ? 0 : seconds));
}

function watch(signal) {
	const rounds = [];
	const sooner = (now) => rounds.forEach((round) => round(now));
	watched.set(signal, rounds);
	addEventListener("keydown", () => sooner(), { signal });
	addEventListener("pointerdown", () => sooner(), { signal });
	addEventListener("visibilitychange", () => sooner(true), { signal });
	signal.addEventListener("abort", () => lost.remove());
	follow(signal, (there, news) => {
		if (signal.aborted) return;
		if (!there) document.querySelector(".toasts").append(lost);
		else if (lost.isConnected) {
			lost.remove();
			sooner(true);
		} else if (news) sooner();
	});
}

/** Tells whether the server is there: by its stream, or by asking each second where that is held back. */
async function follow(signal, tell) {
	let streams = true;
	while (!signal.aborted) {
		if (!document.hidden) {
			if (streams && !lost.isConnected) streams = await read(signal, tell);
			else tell(await answers());
		}
		await new Promise((done) => setTimeout(done, BEAT));
	}
}

const answers = () =>
	fetch("/healthz", { method: "HEAD", signal: AbortSignal.timeout(PATIENCE) }).then(Boolean, () => false);

/** Reads the stream to its end; whether it is one that can be read. */
async function read(signal, tell) {
	const end = new AbortController();
	let heard = false;
	let timer = setTimeout(() => end.abort(), PATIENCE);
	addEventListener("visibilitychange", () => document.hidden && end.abort(), { signal: end.signal });
	try {
		const reader = (await stream("/dashboard/live", AbortSignal.any([signal, end.signal]))).getReader();
		for (;;) {
			const { done, value } = await reader.read();
			if (done) break;
			heard = true;
			tell(true, value.includes(NEWS));
			clearTimeout(timer);
			timer = setTimeout(() => end.abort(), PATIENCE);
		}
	} catch {
		if (signal.aborted || document.hidden) return true;
		if (!heard) {
			const there = await answers();
			tell(there);
			return !there;
		}
		tell(false);
	} finally {
		clearTimeout(timer);
		end.abort();
	}
	return true;
}
