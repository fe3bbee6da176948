// Sends a test message, and opens its page.
import { get, post } from "./api.js";
import { h, path } from "./dom.js";
import { dialog, form } from "./form.js";

const SANDBOX = "One free message. The sandbox simulates its delivery: nothing leaves this server.";
const DELIVERED = "One free message, really delivered. You can follow it on the next page.";

/** Ask for an address and send; `more` is added to the request. */
export async function sendTest(page, more = {}) {
	const { service } = await get("/v1/account", page.signal);
	dialog("Send a test", (close) => [
		h("p", { class: "quiet small" }, service.delivery_mode === "sandbox" ? SANDBOX : DELIVERED),
		form({
			fields: [
				{
					name: "to",
					label: "To",
					type: "email",
					required: true,
					value: page.account.email,
					hint: "An address whose mail you can read.",
					autofocus: true,
				},
			],
			submit: "Send test",
			extra: [h("button", { type: "button", onclick: close }, "Cancel")],
			async send({ to }) {
				const sent = await post("/v1/emails/test", { to, ...more });
				close();
				await page.go(path("/dashboard/messages", sent.id));
			},
		}),
	]);
}
