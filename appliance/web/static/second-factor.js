// The second factor on the account page: turned on in two steps, with recovery codes shown once; turned off again.
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

/** The recovery codes, which the server shows only now. */
function recoveryCodes(codes, done) {
	const text = `${codes.join("\n")}\n`;
	const file = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
	const save = h("a", { class: "button", download: "recovery-codes.txt" }, "Download");
	save.href = file;
	return h(
		"div",
		{ class: "card secret stack", role: "region", "aria-label": "Recovery codes" },
		h("h2", { tabindex: "-1" }, "The second factor is on. Save the recovery codes"),
		h("p", { class: "quiet" }, "Each logs you in once without the app. They are shown only now."),
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
		submit: "Turn on second factor",
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
		h(
			"p",
			null,
			"Scan this with an authenticator app, or type in the key. Then give your password and a code of the app.",
		),
		qr(uri, "The key as a QR code"),
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
	dialog("Turn off the second factor?", (close) => [
		h("p", { class: "quiet" }, "A login then needs the password alone. The recovery codes end."),
		form({
			fields: [PASSWORD, { ...CODE, hint: "From the app, or a recovery code." }],
			extra: [h("button", { type: "button", onclick: close }, "Cancel")],
			submit: "Turn off second factor",
			async send(values) {
				await del("/v1/account/totp", values);
				close();
				toast("The second factor is off.");
				await page.reload();
			},
		}),
	]);
}

/** The section's content. */
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
				button("Turn off second factor", () => turnOff(page), "danger"),
			),
		);
	const begin = button(
		"Turn on second factor",
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
			h("p", null, "Off. With it a login needs a code of an authenticator app beside the password."),
			h("div", { class: "actions" }, begin),
		),
	);
	return place;
}
