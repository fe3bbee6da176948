// The login page.
import { h } from "../dom.js";
import { loginForm } from "../session.js";

/** Where to go after the login: only a dashboard page. */
function next(query) {
	const wanted = new URL(query.get("next") ?? "/dashboard", location.origin);
	const ours = wanted.origin === location.origin && /^\/dashboard(\/|$)/.test(wanted.pathname);
	return ours ? wanted.pathname + wanted.search : "/dashboard";
}

export default async function login(page) {
	return h(
		"div",
		{ class: "login" },
		h("img", { src: new URL("../icon.svg", import.meta.url), alt: "", width: 36, height: 36 }),
		h("h1", { tabindex: "-1" }, "Log in"),
		h("p", { class: "quiet" }, "Mail appliance at ", h("b", null, location.host)),
		loginForm(async (who) => {
			page.entered(who);
			await page.go(who.totp_required ? "/dashboard/account" : next(page.query), { replace: true });
		}),
		h("p", { class: "small" }, h("a", { href: "/dashboard/forgotten" }, "Forgot your password?")),
		h(
			"p",
			{ class: "quiet small" },
			"Without a configuration file, the first start prints a login. Otherwise the operator creates one with ",
			h("code", null, "appliance account create"),
			", and sets a new password with ",
			h("code", null, "appliance account password"),
			".",
		),
	);
}
