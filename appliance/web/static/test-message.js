// Sends a test message, and opens its page.
import { post } from "./api.js";
import { h, path } from "./dom.js";
import { dialog, form } from "./form.js";

/** Ask for an address and send; `more` goes into the request. */
export function sendTest(page, more = {}) {
	dialog("Send a test", (close) => [
		h("p", { class: "quiet small" }, "One message, really delivered, for nothing. You see at once where it is."),
		form({
			fields: [
				{
					name: "to",
					label: "To",
					type: "email",
					required: true,
					value: page.account.email,
					hint: "An address that you can read.",
					autofocus: true,
				},
			],
			submit: "Send",
			extra: [h("button", { type: "button", onclick: close }, "Cancel")],
			async send({ to }) {
				const sent = await post("/v1/emails/test", { to, ...more });
				close();
				await page.go(path("/dashboard/messages", sent.id));
			},
		}),
	]);
}
