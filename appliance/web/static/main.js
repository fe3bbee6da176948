// Starts the dashboard: session, router and keyboard.
import * as api from "./api.js";
import { skeleton } from "./basics.js";
import { fragment, h, refuse } from "./dom.js";
import { zone } from "./time.js";

const ROOT = "/dashboard";
// By the first part of the path: the section, the title, the script of pages below, and their depth; from pages.py.
const PAGES = new Map(Object.entries(JSON.parse(document.documentElement.dataset.pages)));
const SLOW = 150; // milliseconds before a skeleton or, over the same page, a loading bar appears

const main = document.getElementById("main");
let account = null;
let leaving = new AbortController();

// ---- routing

function find(pathname) {
	const [, , name = "", ...below] = pathname.split("/");
	try {
		const params = below.map(decodeURIComponent);
		const [section, , item, depth] = PAGES.get(name) ?? [];
		if (section && below.length <= depth) return { name: below[0] ? item : name || section, section, params };
	} catch {
		// a malformed percent escape
	}
	return null;
}

const alone = (place) => place?.section === "login";

/** The context of a page; `signal` aborts when the user leaves it. */
function context(place, signal, back) {
	return {
		params: place.params,
		query: new URLSearchParams(location.search),
		account,
		signal,
		back,
		go,
		reload: () => show(),
		every: (seconds, work) => import("./live.js").then((live) => live.every(signal, seconds, work)),
		entered,
		left,
		/** Ask for an address and send a test; `more` is added to the request. */
		async sendTest(more) {
			await (await import("./test-message.js")).sendTest(this, more);
		},
	};
}

/** Show that a page is loading. Another page than the current one is replaced by a skeleton. */
function wait(place) {
	if (place && !alone(place) && main.dataset.page !== place.name) {
		main.replaceChildren(skeleton());
		delete main.dataset.page;
	} else document.body.classList.add("slow");
}

/** Shown instead of a failed page. */
async function failed(error) {
	try {
		return (await import("./form.js")).failure(error);
	} catch {
		return [
			h("h1", { tabindex: "-1" }, "The server does not respond."),
			h("button", { type: "button", onclick: () => location.reload() }, "Try again"),
		];
	}
}

async function show({ scroll = 0, focus = true, back = false } = {}) {
	leaving.abort();
	leaving = new AbortController();
	const { signal } = leaving;
	const place = find(location.pathname);
	const slow = setTimeout(() => wait(place), SLOW);
	let content;
	try {
		if (!place) throw Object.assign(new Error("Page not found."), { status: 404 });
		const page = await import(`./pages/${place.name}.js`).catch(api.unreachable);
		content = await page.default(context(place, signal, back));
	} catch (error) {
		if (signal.aborted) return;
		if (error.status === undefined) console.error(error);
		content = await failed(error);
	} finally {
		clearTimeout(slow);
		if (!signal.aborted) document.body.classList.remove("slow");
	}
	if (signal.aborted || !content) return;
	document.body.className = alone(place) ? "alone" : "";
	main.replaceChildren(
		fragment(content, !alone(place) && h("p", { class: "quiet small times" }, `Times are in ${zone()}.`)),
	);
	main.dataset.page = place?.name ?? "";
	mark(place?.section);
	const title = main.querySelector("h1");
	document.title = `${title?.firstChild?.textContent.trim() || "Dashboard"} · Mail appliance`;
	scrollTo(0, scroll);
	if (focus) (main.querySelector("[data-focus]") ?? title ?? main).focus({ preventScroll: true });
}

const rest = document.querySelector(".rest button"); // of the navigation, on a phone

function mark(section) {
	rest.ariaExpanded = "false";
	for (const link of document.querySelectorAll(".rail nav a"))
		link.ariaCurrent = link.dataset.section === section ? "page" : null;
}

/** Open a page; `replace` adds no history entry. */
function go(href, { replace = false, focus = true } = {}) {
	history.replaceState({ ...history.state, scroll: scrollY }, "");
	const from = location.pathname + location.search;
	history[replace ? "replaceState" : "pushState"]({ from }, "", href);
	return show({ focus });
}

// ---- session

function entered(who) {
	account = who;
	refuse(who.may_not);
	document.querySelector(".who").textContent = who.email;
	for (const each of document.querySelectorAll(".rail .admin")) each.hidden = who.role !== "admin";
}

/** Go to the login in a new document, so that no account data stays in memory. */
function left() {
	const here = location.pathname + location.search;
	const next = here.startsWith(`${ROOT}/login`) || here === ROOT ? "" : `?next=${encodeURIComponent(here)}`;
	location.replace(`${ROOT}/login${next}`);
}
addEventListener("pageshow", (event) => event.persisted && location.reload());

/** The session has ended: ask for a login once, for all waiting requests. */
let asking = null;
function logInAgain(error) {
	asking ??= import("./session.js")
		.then((session) => session.loginAgain(account?.email, left, error))
		.finally(() => (asking = null));
	return asking;
}

async function start() {
	api.onEnded(logInAgain);
	const place = find(location.pathname);
	if (alone(place)) return show();
	const slow = setTimeout(() => wait(place), SLOW);
	try {
		entered(await api.resume());
	} catch (error) {
		if (api.isOver(error)) return left();
		document.body.className = "alone";
		main.replaceChildren(fragment(await failed(error)));
		return;
	} finally {
		clearTimeout(slow);
	}
	await show({ focus: false });
}

// ---- clicks and keys

document.addEventListener("click", (event) => {
	const link = event.target.closest?.("a[href]");
	const { defaultPrevented, button, metaKey, ctrlKey, shiftKey, altKey } = event;
	if (!link || defaultPrevented || button || metaKey || ctrlKey || shiftKey || altKey) return;
	if (link.origin !== location.origin || !`${link.pathname}/`.startsWith(`${ROOT}/`) || link.hash) return;
	event.preventDefault();
	go(link.pathname + link.search);
});
addEventListener("popstate", (event) => show({ scroll: event.state?.scroll ?? 0, back: true }));
history.scrollRestoration = "manual";

document
	.querySelector(".theme")
	.addEventListener("click", async () => (await import("./theme-switch.js")).switchTheme());

rest.addEventListener("click", () => (rest.ariaExpanded = rest.ariaExpanded === "false"));

const command = document.querySelector(".command");
command.addEventListener("focus", async () => (await import("./command.js")).attach(command, go), { once: true });

document.addEventListener("keydown", (event) => {
	const typing = event.target.closest?.("input, textarea, select, dialog, [contenteditable]");
	if (typing || event.metaKey || event.ctrlKey || event.altKey || !account) return;
	if (event.key === "/") {
		event.preventDefault();
		command.focus();
	} else if (event.key.length === 1) import("./keys.js").then((keys) => keys.press(event.key, go));
});

start();
