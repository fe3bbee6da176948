// The webhook: its URL, its secret, a ping, and the posts.
import { del, get, post, put } from "../api.js";
import { fragment, h, query, toast } from "../dom.js";
import { confirmed, form, shownOnce } from "../form.js";
import { older } from "../lists.js";
import { badge, button, empty, facts, head, section } from "../pieces.js";
import { shownPost } from "../posts.js";
import { ago, when } from "../time.js";
import { update } from "../update.js";

// What each means, and whether a new webhook has it.
const EVENTS = {
	"email.delivered": ["a server took the message", true],
	"email.bounced": ["it cannot be delivered; the credit is returned", true],
	"email.failed": ["retries are used up", true],
	"email.delayed": ["it waits for an hour or longer, and is still tried", false],
	"email.late_bounced": ["a bounce came by mail after the delivery", false],
	"email.complained": ["the recipient has marked it as spam", false],
};

function settings(page, hook, secretPlace) {
	return form({
		fields: [
			{
				name: "url",
				label: "URL",
				type: "url",
				required: true,
				value: hook?.url ?? "",
				placeholder: "https://example.com/hooks/mail",
				hint: "HTTPS, on a public host. Each event is posted to it once per recipient.",
			},
			...Object.entries(EVENTS).map(([event, [meaning, usual]]) => ({
				name: event,
				label: `${event}: ${meaning}`,
				type: "checkbox",
				value: hook?.events.includes(event) ?? usual,
			})),
			{ name: "enabled", label: "Enabled", type: "checkbox", value: hook?.enabled ?? true },
		],
		submit: hook ? "Save" : "Create webhook",
		async send(values) {
			const saved = await put("/v1/webhook", {
				url: values.url,
				events: Object.keys(EVENTS).filter((event) => values[event]),
				enabled: values.enabled,
			});
			const secret = saved.secret ?? saved.webhook?.secret;
			if (!secret) {
				toast("Saved");
				return page.reload();
			}
			return showSecret(page, secretPlace, secret);
		},
	});
}

function showSecret(page, place, secret) {
	const box = shownOnce(
		"Signing secret",
		"The server keeps it encrypted, to sign with.",
		[["Secret", secret]],
		h(
			"p",
			{ class: "small quiet" },
			"Every post carries Service-Signature: t=…,v1=…: the HMAC-SHA256 of “t.body” with this secret.",
		),
	);
	place.replaceChildren(box);
	box.querySelector("h2").focus();
	new MutationObserver(() => place.childElementCount === 0 && page.reload()).observe(place, { childList: true });
}

function state(hook) {
	const failing = hook.last_failure_at && (!hook.last_success_at || hook.last_failure_at > hook.last_success_at);
	return facts([
		[
			"State",
			hook.enabled
				? failing
					? badge("bounced", "failing")
					: badge("success", "enabled")
				: badge("queued", "switched off"),
		],
		["Last success", ago(hook.last_success_at)],
		["Last failure", ago(hook.last_failure_at)],
		["Secret", h("code", null, `whsec_…${hook.secret_hint ?? ""}`)],
		["Saved", when(hook.updated_at)],
	]);
}

async function history(page) {
	const place = h("div", { class: "card posts" });
	const load = (before) => get(query("/v1/webhook/deliveries", { limit: 20, before }), page.signal);
	let before = []; // the posts of older pages
	const draw = async () => {
		const { deliveries, next } = await load();
		const ids = new Set(deliveries.map((each) => each.id));
		const shown = [...deliveries, ...before.filter((each) => !ids.has(each.id))];
		const nothing = h("p", { class: "post quiet" }, "Nothing was posted in the last seven days.");
		update(place, shown.length ? shown.map((each) => shownPost(each, draw)) : nothing);
		return next;
	};
	const next = await draw();
	page.every(3, draw);
	return {
		draw,
		content: fragment(
			place,
			older(next, async (cursor) => {
				const more = await load(cursor);
				before = [...before, ...more.deliveries];
				await draw();
				return more.next;
			}),
		),
	};
}

export default async function webhook(page) {
	let hook;
	try {
		({ webhook: hook } = await get("/v1/webhook", page.signal));
	} catch (error) {
		if (error.status !== 404) throw error;
		return fragment(
			head("Webhook"),
			empty(
				"Not on this server",
				"This server does not offer webhooks. Ask GET /emails/{id} for a message's result instead.",
			),
		);
	}
	const secretPlace = h("div");
	const about = "Your program is told what became of each recipient, as soon as it is final.";
	if (!hook)
		return fragment(
			head("Webhook", { about }),
			secretPlace,
			section("Settings", h("div", { class: "card" }, settings(page, null, secretPlace))),
		);
	const posts = await history(page);
	const standing = h("div", { class: "card" }, state(hook));
	page.every(3, async () => {
		const now = await get("/v1/webhook", page.signal);
		if (now.webhook) update(standing, state(now.webhook));
	});
	const ping = button(
		"Send a ping",
		async () => {
			await post("/v1/webhook/ping");
			toast("A webhook.test event is on its way");
			await posts.draw();
		},
		"primary",
	);
	const rotate = button("New secret", async () => {
		if (
			!(await confirmed(
				"Make a new secret?",
				"The new one signs from then on; the old one is good no more. Your program needs the new one at once.",
				"Make a new secret",
			))
		)
			return;
		showSecret(page, secretPlace, (await post("/v1/webhook/rotate-secret")).secret);
	});
	const remove = button(
		"Delete",
		async () => {
			if (
				!(await confirmed(
					"Delete the webhook?",
					"Its history is deleted, too. Results are still shown here and by the API.",
					"Delete it",
				))
			)
				return;
			await del("/v1/webhook");
			await page.reload();
		},
		"danger",
	);
	return fragment(
		head("Webhook", { about, actions: [remove, rotate, ping] }),
		secretPlace,
		h(
			"div",
			{ class: "split" },
			section("Settings", h("div", { class: "card" }, settings(page, hook, secretPlace))),
			section("State", standing),
		),
		section("What was posted", posts.content),
	);
}
