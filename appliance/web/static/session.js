// Asks to log in again when the session has ended, over the page, which keeps what was typed.
import * as api from "./api.js";
import { h } from "./dom.js";
import { dialog, form } from "./form.js";

/** Who has logged in again; null if the question was put away. */
export function loginAgain(email) {
	return new Promise((resolve) => {
		let who = null;
		dialog("Your session has ended", (close) => [
			h("p", { class: "quiet" }, "Log in to go on. What you have typed is still there."),
			form({
				fields: [
					{
						name: "email",
						label: "Email address",
						type: "email",
						required: true,
						autocomplete: "username",
						value: email,
					},
					{
						name: "password",
						label: "Password",
						type: "password",
						required: true,
						autocomplete: "current-password",
						autofocus: true,
					},
				],
				submit: "Log in",
				async send(values) {
					who = await api.login(values.email, values.password);
					close();
				},
			}),
		]);
		const shown = [...document.querySelectorAll("dialog[open]")].at(-1);
		shown.addEventListener("close", () => resolve(who));
	});
}
