// Switches between light and dark, and stores the choice for theme.js. Loaded at the first click.

export function switchTheme() {
	const root = document.documentElement;
	const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
	root.dataset.theme = dark ? "light" : "dark";
	try {
		localStorage.setItem("theme", root.dataset.theme);
	} catch {
		// no storage
	}
}
