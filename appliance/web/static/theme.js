// Sets light or dark before the first paint; a module would run too late.
try {
	const chosen = localStorage.getItem("theme");
	if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
	// No storage: keep the system's choice.
}
