// Two-factor authentication on the account page: setup in two steps, recovery codes, and turning it off.
import { del, get, post } from "./api.js";
import { h, toast } from "./dom.js";
import { dialog, form } from "./form.js";
import { badge, button, copyButton, facts } from "./pieces.js";
import { qr } from "./qr.js";
import { when } from "./time.js";

const PASSWORD = {
	name: "password",
	label: "Password",
	type: "password",
	required: true,
	autocomplete: "current-password",
	autofocus: true,
};
const CODE = { name: "code", label: "Code", required: true, autocomplete: "one-time-code", maxlength: 64 };

/** The recovery codes, shown only once. */
function recoveryCodes(codes, done) {
	const text = `${codes.join("\n")}\n`;
	const file = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
	const save = h("a", { class: "button", download: "recovery-codes.txt" }, "Download");
	save.href = file;
	return h(
		"div",
		{ class: "card secret stack", role: "region", "aria-label": "Recovery codes" },
		h("h2", { tabindex: "-1" }, "Two-factor authentication is on. Save the recovery codes"),
		h("p", { class: "quiet" }, "Each code works once, without the app. They will not be shown again."),
		h(
			"ul",
			{ class: "codes" },
			codes.map((each) => h("li", null, h("code", { "data-code": "" }, each))),
		),
		h(
			"div",
			{ class: "actions" },
			copyButton(text, "recovery codes"),
			save,
			button(
				"I have saved them",
				() => {
					URL.revokeObjectURL(file);
					return done();
				},
				"primary",
			),
		),
	);
}

/** The secret, and the form that proves that an app has it. */
function enrolment(page, place, { secret, uri }) {
	const confirm = form({
		fields: [PASSWORD, { ...CODE, hint: "The six digits that the app shows now." }],
		submit: "Turn on two-factor authentication",
		async send(values) {
			const { recovery_codes: codes } = await post("/v1/account/totp/confirm", values);
			place.replaceChildren(
				recoveryCodes(codes, () => {
					page.entered({ ...page.account, totp_required: false });
					return page.reload();
				}),
			);
			place.querySelector("h2").focus();
		},
	});
	return h(
		"div",
		{ class: "card stack" },
		h("p", null, "Scan this code with an authenticator app, or type in the key. Then enter your password and a code."),
		qr(uri, "QR code of the key"),
		facts([
			[
				"Key",
				h("code", { class: "break", "data-secret": "totp" }, secret.match(/.{1,4}/g).join(" ")),
				copyButton(secret, "key"),
			],
			["As a link", h("code", { class: "break" }, uri), copyButton(uri, "link")],
		]),
		confirm,
	);
}

function turnOff(page) {
	dialog("Turn off two-factor authentication?", (close) => [
		h("p", { class: "quiet" }, "You will log in with your password only. The recovery codes stop working."),
		form({
			fields: [PASSWORD, { ...CODE, hint: "From the app, or a recovery code." }],
			extra: [h("button", { type: "button", onclick: close }, "Cancel")],
			submit: "Turn off two-factor authentication",
			async send(values) {
				await del("/v1/account/totp", values);
				close();
				toast("Two-factor authentication is off.");
				await page.reload();
			},
		}),
	]);
}

/** The section. */
export async function secondFactor(page) {
	const state = await get("/v1/account/totp", page.signal);
	if (state.enabled)
		return h(
			"div",
			{ class: "card" },
			facts([
				["State", badge("success", "on")],
				["Since", when(state.enabled_at)],
				["Recovery codes", `${state.recovery_codes_left} left`],
			]),
			h(
				"div",
				{ class: "actions" },
				button("Turn off two-factor authentication", () => turnOff(page), "danger"),
			),
		);
	const begin = button(
		"Turn on two-factor authentication",
		async () => {
			place.replaceChildren(enrolment(page, place, await post("/v1/account/totp")));
			place.querySelector("[data-focus]").focus();
		},
		state.required ? "primary" : "",
	);
	const place = h(
		"div",
		null,
		h(
			"div",
			{ class: "card" },
			h("p", null, "Off. When on, a login also requires a code from an authenticator app."),
			h("div", { class: "actions" }, begin),
		),
	);
	return place;
}
