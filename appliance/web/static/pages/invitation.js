// The page of an invitation or password link: set the password and log in.
import * as api from "../api.js";
import { h, toast } from "../dom.js";
import { form } from "../form.js";
import { loginForm } from "../session.js";

export default async function invitation(page) {
	// From the fragment, which is never sent to a server.
	const given = new URLSearchParams(location.hash.slice(1));
	const email = given.get("email") ?? "";
	const entered = async (who) => {
		page.entered(who);
		await page.go(who.totp_required ? "/dashboard/account" : "/dashboard", { replace: true });
	};
	const place = h(
		"div",
		null,
		form({
			fields: [
				{
					name: "password",
					label: "New password",
					type: "password",
					required: true,
					autocomplete: "new-password",
					minlength: 8,
					hint: "At least 8 characters.",
					autofocus: true,
				},
			],
			// For the browser's password manager.
			extra: [h("input", { type: "text", value: email, autocomplete: "username", hidden: true })],
			submit: "Set password",
			async send(values) {
				await api.post("/v1/auth/invitation", { token: given.get("token") ?? "", ...values });
				toast("The password is set.");
				try {
					await entered(await api.login({ email, ...values }));
				} catch {
					place.replaceChildren(loginForm(entered, email)); // for example if two-factor authentication is on
				}
			},
		}),
	);
	return h(
		"div",
		{ class: "login" },
		h("img", { src: new URL("../icon.svg", import.meta.url), alt: "", width: 36, height: 36 }),
		h("h1", { tabindex: "-1" }, "Set a password"),
		h("p", { class: "quiet" }, "To log in to the mail appliance at ", h("b", null, location.host)),
		email && h("p", null, h("bdi", null, email)),
		given.get("token")
			? place
			: h("p", { class: "error", role: "alert" }, "This link is incomplete. Copy the whole link."),
	);
}
