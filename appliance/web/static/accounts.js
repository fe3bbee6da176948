// What an administrator does to an account, from the list of accounts and from the page of one.
import { post } from "./api.js";
import { h, path } from "./dom.js";
import { confirmed, dialog, form } from "./form.js";
import { button } from "./pieces.js";
import { number } from "./time.js";

/** Asks for a change of an account's credits. */
export function credits(page, account) {
	dialog(`Credits of ${account.name}`, (close) => [
		h("p", { class: "quiet" }, account.credits === null ? "No limit now." : `${number(account.credits)} now.`),
		form({
			fields: [
				{
					name: "how",
					label: "Change",
					type: "select",
					options: [
						["change", "add, or take away with a minus"],
						["balance", "set to"],
						["unlimited", "no limit"],
					],
				},
				{ name: "amount", label: "Amount", type: "number", value: "1000" },
			],
			submit: "Save",
			extra: [h("button", { type: "button", onclick: close }, "Cancel")],
			async send({ how, amount }) {
				await post(
					`${path("/v1/admin/accounts", account.id)}/credits`,
					how === "unlimited" ? { balance: null } : { [how]: Number(amount) },
				);
				close();
				await page.reload();
			},
		}),
	]);
}

/** The button that stops an account from sending, or lets it send again. */
export function suspension(page, account, kind = "") {
	const change = (what) => async () => {
		if (
			what === "suspend" &&
			!(await confirmed(
				`Suspend ${account.name}?`,
				"It cannot send until it is resumed. What it has queued still goes out.",
				"Suspend account",
				"Cancel",
			))
		)
			return;
		await post(`${path("/v1/admin/accounts", account.id)}/${what}`);
		await page.reload();
	};
	return account.suspended
		? button("Resume", change("resume"), kind, { "aria-label": `Resume ${account.name}` })
		: button("Suspend", change("suspend"), `${kind} danger`, { "aria-label": `Suspend ${account.name}` });
}
