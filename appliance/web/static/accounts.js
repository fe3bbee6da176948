// Actions on an account, for the list of accounts and the page of one.
import { post } from "./api.js";
import { h, path } from "./dom.js";
import { confirmed, dialog, form } from "./form.js";
import { button } from "./pieces.js";
import { number } from "./time.js";

/** Dialog to change an account's credits. */
export function credits(page, account) {
	dialog(`Credits of ${account.name}`, (close) => [
		h("p", { class: "quiet" }, account.credits === null ? "Unlimited." : `${number(account.credits)} now.`),
		form({
			fields: [
				{
					name: "how",
					label: "Change",
					type: "select",
					options: [
						["change", "add (negative to remove)"],
						["balance", "set to"],
						["unlimited", "unlimited"],
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

/** Button that suspends or resumes an account. */
export function suspension(page, account, kind = "") {
	const change = (what) => async () => {
		if (
			what === "suspend" &&
			!(await confirmed(
				`Suspend ${account.name}?`,
				"The account cannot send until you resume it. Queued mail is still delivered.",
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
