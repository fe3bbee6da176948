// A forgotten password: ask for a link by mail. The answer is the same for every address.
import { post } from "../api.js";
import { h } from "../dom.js";
import { form } from "../form.js";

export default async function forgotten() {
	const place = h(
		"div",
		null,
		form({
			fields: [
				{
					name: "email",
					label: "Email address",
					type: "email",
					required: true,
					autocomplete: "username",
					autofocus: true,
				},
			],
			submit: "Send a link",
			async send(values) {
				await post("/v1/auth/forgotten-password", values);
				const text = "If this address has a login, a mail with a link is on its way. It works once, for an hour.";
				place.replaceChildren(h("p", { role: "status" }, text));
			},
		}),
	);
	return h(
		"div",
		{ class: "login" },
		h("img", { src: new URL("../icon.svg", import.meta.url), alt: "", width: 36, height: 36 }),
		h("h1", { tabindex: "-1" }, "Forgot your password?"),
		h("p", { class: "quiet" }, "The server sends you a link to set a new one."),
		place,
		h("p", { class: "small" }, h("a", { href: "/dashboard/login" }, "Back to the login")),
	);
}
