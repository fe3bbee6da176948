// The webhook: URL, secret, ping and deliveries.
import { del, get, post, put } from "../api.js";
import { fragment, h, may, query, toast } from "../dom.js";
import { confirmed, form, shownOnce } from "../form.js";
import { older, wrongFilter } from "../lists.js";
import { badge, button, empty, facts, head, section } from "../pieces.js";
import { STATUSES, shownPost } from "../posts.js";
import { ago, count, when } from "../time.js";
import { update } from "../update.js";
import { replay, replayed, replayPeriod, sendTest, statistics } from "../webhook-tools.js";

// What each event means, and whether a new webhook includes it.
const EVENTS = {
	"email.delivered": ["a server accepted the message", true],
	"email.bounced": ["permanently rejected; the credit is returned", true],
	"email.failed": ["attempts used up or cancelled", true],
	"email.delayed": ["queued for an hour or longer, still being retried", false],
	"email.late_bounced": ["bounced by mail after delivery", false],
	"email.complained": ["marked as spam by the recipient", false],
	"email.received": ["a receiving address got a message", false],
};

const FORMATS = { native: "native", resend: "Resend", postmark: "Postmark", mailgun: "Mailgun", sendgrid: "SendGrid" };

function settings(page, hook, secretPlace) {
	const made = form({
		fields: [
			{
				name: "url",
				label: "URL",
				type: "url",
				required: true,
				value: hook?.url ?? "",
				placeholder: "https://example.com/hooks/mail",
				hint:
					"HTTPS on a public host. With serve --sandbox also HTTP to localhost; with appliance dev only that. " +
					"One post per event and recipient.",
			},
			...Object.entries(EVENTS).map(([event, [meaning, usual]]) => ({
				name: event,
				label: `${event}: ${meaning}`,
				type: "checkbox",
				value: hook?.events.includes(event) ?? usual,
			})),
			{
				name: "format",
				label: "Format",
				type: "select",
				value: hook?.format ?? "native",
				options: Object.entries(FORMATS),
				hint: "Shape of new events: native, or like another provider's webhooks, for a receiver written for it.",
			},
			{ name: "enabled", label: "Enabled", type: "checkbox", value: hook?.enabled ?? true },
		],
		submit: hook ? "Save webhook" : "Create webhook",
		async send(values) {
			const saved = await put("/v1/webhook", {
				url: values.url,
				events: Object.keys(EVENTS).filter((event) => values[event]),
				enabled: values.enabled,
				format: values.format,
				replaces: hook?.updated_at ?? "",
			});
			const secret = saved.secret ?? saved.webhook?.secret;
			if (!secret) {
				toast("Saved");
				return page.reload();
			}
			return showSecret(page, secretPlace, secret);
		},
	});
	if (!may("saveWebhook")) {
		for (const each of made.elements) each.disabled = true;
		made.append(h("p", { class: "quiet small" }, "Only owners and developers can change the webhook."));
	}
	return made;
}

function showSecret(page, place, secret) {
	const box = shownOnce(
		"Signing secret",
		"The server stores it encrypted.",
		[["Secret", secret]],
		h(
			"p",
			{ class: "small quiet" },
			"It verifies the header Service-Signature (t=…,v1=…, HMAC-SHA256 of “t.body”) and those of Standard Webhooks.",
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
				: badge("queued", "disabled"),
		],
		["Last success", ago(hook.last_success_at)],
		["Last failure", ago(hook.last_failure_at)],
		["Secret", h("code", null, `whsec_…${hook.secret_hint ?? ""}`)],
		...(hook.public_key ? [["Public key", h("code", null, hook.public_key)]] : []),
		["Saved", when(hook.updated_at)],
	]);
}

/** The history filter; it is part of the URL. */
function filter(page, wanted) {
	const types = [...Object.keys(EVENTS), "webhook.test"].map((each) => [each, each]);
	return form({
		inline: true,
		fields: [
			{
				name: "status",
				label: "Status",
				type: "select",
				value: wanted.status,
				options: [["", "any"], ...Object.entries(STATUSES)],
			},
			{ name: "type", label: "Event type", type: "select", value: wanted.type, options: [["", "any"], ...types] },
		],
		submit: "Filter posts",
		send: (given) => page.go(query("/dashboard/webhook", given)),
	});
}

async function history(page, wanted) {
	const place = h("div", { class: "card posts" });
	const load = (before) => get(query("/v1/webhook/deliveries", { ...wanted, limit: 20, before }), page.signal);
	let before = []; // deliveries of older pages
	const chosen = new Map(); // selected deliveries by id
	const many = button("Replay selected", async () => {
		const progress = (text) => (many.textContent = text);
		const done = await replay(
			[...chosen.values()].sort((one, other) => (one.id < other.id ? 1 : -1)),
			progress,
		);
		for (const box of place.querySelectorAll("input:checked")) box.checked = false;
		chosen.clear();
		tell();
		toast(replayed(done));
		await draw();
	});
	const tell = () => {
		many.textContent = chosen.size ? `Replay ${count(chosen.size, "delivery", "deliveries")}` : "Replay selected";
		many.disabled = chosen.size === 0;
	};
	tell();
	const all = button("Select all shown", () => {
		for (const box of place.querySelectorAll("input[type=checkbox]:not(:checked)")) box.click();
	});
	const selectable = (each) => {
		const box = h("input", {
			type: "checkbox",
			"aria-label": `Select delivery ${each.id}`,
			onchange: () => {
				if (box.checked) chosen.set(each.id, each);
				else chosen.delete(each.id);
				tell();
			},
		});
		return h(
			"div",
			{ class: "selectable", "data-key": `selectable ${each.id}` },
			may("replayWebhookDelivery") && box,
			shownPost(each, draw),
		);
	};
	const draw = async () => {
		const { deliveries, next } = await load();
		const ids = new Set(deliveries.map((each) => each.id));
		const shown = [...deliveries, ...before.filter((each) => !ids.has(each.id))];
		const nothing = h(
			"p",
			{ class: "post quiet" },
			wanted.status || wanted.type ? "No results for this filter." : "No deliveries in the last 7 days.",
		);
		update(place, shown.length ? shown.map(selectable) : nothing);
		return next;
	};
	let next;
	try {
		next = await draw();
	} catch (error) {
		return { draw: async () => {}, content: wrongFilter(error) };
	}
	page.every(3, draw);
	return {
		draw,
		content: fragment(
			h("div", { class: "row bulk", needs: "replayWebhookDelivery" }, all, many),
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
			empty("Not available", "This server has webhooks disabled. Use GET /emails/{id} to get a message's status."),
		);
	}
	const secretPlace = h("div");
	const about = "Receive the result of each recipient as soon as it is final.";
	if (!hook)
		return fragment(
			head("Webhook", { about }),
			secretPlace,
			section("Settings", h("div", { class: "card" }, settings(page, null, secretPlace))),
		);
	const wanted = { status: page.query.get("status") ?? "", type: page.query.get("type") ?? "" };
	const [posts, attempts] = await Promise.all([history(page, wanted), statistics(page)]);
	const standing = h("div", { class: "card" }, state(hook));
	page.every(3, async () => {
		const now = await get("/v1/webhook", page.signal);
		if (now.webhook) update(standing, state(now.webhook));
	});
	const test = button("Send a test event", () => sendTest(Object.keys(EVENTS), posts.draw), "primary", {
		needs: "pingWebhook",
	});
	const rotate = button(
		"Rotate secret",
		async () => {
			if (
				!(await confirmed(
					"Rotate the secret?",
					"A new secret signs all events from now on. Update your application immediately.",
					"Rotate secret",
				))
			)
				return;
			showSecret(page, secretPlace, (await post("/v1/webhook/rotate-secret")).secret);
		},
		"",
		{ needs: "rotateWebhookSecret" },
	);
	const remove = button(
		"Delete webhook",
		async () => {
			if (
				!(await confirmed(
					"Delete the webhook?",
					"Its history is deleted too. Results remain available here and in the API.",
					"Delete webhook",
				))
			)
				return;
			await del("/v1/webhook");
			await page.reload();
		},
		"danger",
		{ needs: "deleteWebhook" },
	);
	return fragment(
		head("Webhook", { about, actions: [remove, rotate, test] }),
		secretPlace,
		h(
			"div",
			{ class: "split" },
			section("Settings", h("div", { class: "card" }, settings(page, hook, secretPlace))),
			section("State", standing),
		),
		attempts,
		h(
			"section",
			null,
			h(
				"div",
				{ class: "titled" },
				h("h2", null, "Deliveries"),
				button("Replay failed deliveries", () => replayPeriod(page, posts.draw), "", {
					needs: "replayWebhookDelivery",
				}),
			),
			h("div", { class: "card filter" }, filter(page, wanted)),
			posts.content,
		),
	);
}
