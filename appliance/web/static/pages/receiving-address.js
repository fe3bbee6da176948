// One receiving address: the MX record to publish, what DNS has, and removal.
import { del, get } from "../api.js";
import { fragment, h, path, toast } from "../dom.js";
import { confirmed } from "../form.js";
import { shownName } from "../idn.js";
import { button, errorText, head, notice } from "../pieces.js";
import { recordTable } from "./domain.js";
import { meaning } from "./receiving.js";

const HOME = "/dashboard/receiving";

export default async function receivingAddress(page) {
	const [name] = page.params;
	const address = path("/v1/inbound/addresses", name);
	const place = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, "Checking DNS …"));
	const check = async () => {
		const { records, warning } = await get(address, page.signal);
		const isReady = records.every((each) => each.status === "ok");
		place.replaceChildren(
			fragment(
				h("p", { class: "quiet" }, `Receives ${meaning(name)}.`),
				warning ? notice("bounced", warning) : isReady && notice("delivered", "DNS routes its mail to this server."),
				h("section", null, h("h2", null, "DNS record to publish"), recordTable(records)),
			),
		);
	};
	const remove = button(
		"Remove address",
		async () => {
			const text = "The server then rejects mail to it. Received messages stay until they expire.";
			if (!(await confirmed(`Remove ${name}?`, text, "Remove address"))) return;
			await del(address);
			toast(`${name} removed`);
			await page.go(HOME);
		},
		"danger",
		{ needs: "removeReceivingAddress" },
	);
	const again = button("Check now", check, "primary");
	// DNS may be slow, and the page does not wait for it.
	check().catch((error) => {
		if (error.name === "AbortError") return;
		if (error.status === 404) for (const action of [remove, again]) action?.remove();
		place.replaceChildren(errorText(error));
	});
	return fragment(
		head(shownName(name), {
			crumb: { href: HOME, title: "Receiving addresses" },
			actions: [remove, again],
		}),
		place,
	);
}
