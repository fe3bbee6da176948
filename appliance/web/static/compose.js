// The composer: a new message, sent now or later.
import { get, post } from "./api.js";
import { path, query, toast } from "./dom.js";
import { formDialog } from "./form.js";
import { shownName } from "./idn.js";
import { timeField, utc } from "./schedule.js";
import { hour } from "./time.js";

/** Ask for a message, send it, and open its page. */
export async function compose(page) {
	const { domains } = await get(query("/v1/domains", { limit: 100 }), page.signal);
	const usable = domains.filter((each) => each.status !== "pending").map((each) => each.name);
	const own = usable.find((each) => page.account.email.endsWith(`@${each}`));
	const key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // a second click sends nothing twice
	formDialog("New message", {
		fields: [
			{
				name: "from",
				label: "From",
				required: true,
				value: own ? page.account.email : usable.length ? `hello@${usable[0]}` : "",
				hint: usable.length
					? `An address at ${usable.slice(0, 3).map(shownName).join(", ")}.`
					: "Verify a domain first.",
			},
			{ name: "to", label: "To", required: true, autofocus: true, hint: "Separate addresses with commas." },
			{ name: "subject", label: "Subject", required: true },
			{ name: "text", label: "Text", type: "textarea", required: true },
			timeField("Send later", { hint: "Empty: now. " }),
		],
		submit: "Send message",
		send: ({ from, to, subject, text, scheduled_at: at }) =>
			post(
				"/emails",
				{
					from,
					to: to.split(",").map((each) => each.trim()),
					subject,
					text,
					...(at && { scheduled_at: utc(at) }),
				},
				{ "Idempotency-Key": key },
			),
		async done({ id, scheduled_at: at }) {
			toast(at ? `Goes out ${hour(at)}` : "Message accepted");
			await page.go(path("/dashboard/messages", id));
		},
	});
}
