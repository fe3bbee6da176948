// Keyboard shortcuts for pages and lists. Loaded at the first key outside a field.

let before = "";

/** Handle a key pressed outside a field. */
export async function press(key, go) {
	const goes = before === "g" && document.querySelector(`.rail nav li:not([hidden]) a[data-key="${CSS.escape(key)}"]`);
	before = key;
	if (goes) go(goes.pathname);
	else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
	else if (key === "?") (await import("./command.js")).showShortcuts();
}

function step(by) {
	const links = [...document.querySelectorAll("main tr.linked a")];
	const at = links.indexOf(document.activeElement);
	links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
}
