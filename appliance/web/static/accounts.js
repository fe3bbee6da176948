// Actions on an account, for the list of accounts and the page of one.
import { post } from "./api.js";
import { path, toast } from "./dom.js";
import { confirmed, formDialog } from "./form.js";
import { button } from "./pieces.js";
import { number } from "./time.js";

/** Dialog to change an account's credits. */
export const credits = (page, account) =>
	formDialog(`Credits of ${account.name}`, {
		about: account.credits === null ? "Unlimited." : `${number(account.credits)} now.`,
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
		send: ({ how, amount }) =>
			post(
				`${path("/v1/admin/accounts", account.id)}/credits`,
				how === "unlimited" ? { balance: null } : { [how]: Number(amount) },
			),
		done: page.reload,
	});

/** Button that suspends or resumes an account. */
export function suspension(page, account) {
	const change = async (what) => {
		await post(`${path("/v1/admin/accounts", account.id)}/${what}`);
		await page.reload();
	};
	const suspend = async () => {
		const text = "The account cannot send until you resume it. Queued mail is still delivered.";
		if (!(await confirmed(`Suspend ${account.name}?`, text, "Suspend account"))) return;
		await change("suspend");
		toast(`${account.name} suspended`, () => change("resume"));
	};
	return account.suspended
		? button("Resume", () => change("resume"), "", { "aria-label": `Resume ${account.name}` })
		: button("Suspend", suspend, "danger", { "aria-label": `Suspend ${account.name}` });
}
