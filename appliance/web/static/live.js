// Keeps a visible page up to date, and reports when the server does not respond.
import { fresh, stream } from "./api.js";
import { h } from "./dom.js";

const BEAT = 1000; // milliseconds between bytes of the stream
const PATIENCE = 2000; // milliseconds to wait for a byte or a response
const SLOWEST = 60; // seconds between refreshes while nothing changes
const NEWS = 58; // a colon in the stream: mail was accepted

const lost = h("p", null, "Connection lost, retrying…");
const watched = new WeakMap(); // per page: functions that refresh it early

/** Repeat `work` while the page is visible, until `signal`. It may return the seconds until the next round. */
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
		const wanted = await work().catch(() => {}); // the next round may succeed
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

/** Watch the server: by its stream, or by polling every second if a proxy buffers the stream. */
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

/** Read the stream to its end. Returns whether it can be read. */
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
