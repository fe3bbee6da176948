// The login form: on its own page, and over a page whose session has ended, which keeps typed text.
import * as api from "./api.js";
import { h } from "./dom.js";
import { dialog, form } from "./form.js";

/** The form; `entered` gets the user. With a known address, it asks only for the password. */
export function loginForm(entered, email = "") {
	const place = h("div", null, passwordForm(email, send));
	async function send(values) {
		try {
			await entered(await api.login(values));
		} catch (error) {
			if (!error.secondFactor || values.code) throw error;
			place.replaceChildren(codeForm(values, send, () => place.replaceChildren(passwordForm(values.email, send))));
			place.querySelector("input").focus();
		}
	}
	return place;
}

const passwordForm = (email, send) =>
	form({
		fields: [
			{
				name: "email",
				label: "Email address",
				type: "email",
				required: true,
				autocomplete: "username",
				value: email,
				autofocus: !email,
			},
			{
				name: "password",
				label: "Password",
				type: "password",
				required: true,
				autocomplete: "current-password",
				autofocus: Boolean(email),
			},
		],
		submit: "Log in",
		send,
	});

const codeForm = (known, send, back) =>
	form({
		fields: [
			{
				name: "code",
				label: "Two-factor code",
				required: true,
				autocomplete: "one-time-code",
				hint: "Six digits from your authenticator app, or a recovery code.",
			},
		],
		extra: [h("button", { type: "button", onclick: back }, "Back")],
		submit: "Log in",
		send: (values) => send({ ...known, ...values }),
	});

/** Ask the user to log in again. Without a login, `error` is raised. */
export async function loginAgain(email, left, error) {
	const who = await asked(email);
	if (!who) left();
	else if (who.email !== email) location.reload();
	else return;
	throw error;
}

/** The user who logged in again; null if the dialog was closed. */
function asked(email) {
	return new Promise((resolve) => {
		let who = null;
		dialog("Your session has ended", (close) => [
			h("p", { class: "quiet" }, "Log in to continue. Your input is still here."),
			loginForm((entered) => {
				who = entered;
				close();
			}, email),
		]);
		const shown = [...document.querySelectorAll("dialog[open]")].at(-1);
		shown.addEventListener("close", () => resolve(who));
	});
}
