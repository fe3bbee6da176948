// One message: the state of each recipient and its reason, updated live; its webhook posts; its content.
import { get, post } from "../api.js";
import { fragment, h, path, query, style, toast } from "../dom.js";
import { confirmed } from "../form.js";
import { standing, templatePath } from "../lists.js";
import { badge, button, copyButton, errorText, facts, head, section, table } from "../pieces.js";
import { shownPost } from "../posts.js";
import { preview } from "../preview.js";
import { timeline } from "../timeline.js";
import { bytes, count, when } from "../time.js";
import { update } from "../update.js";

const FOLDED = 4; // recipients from which on those that are delivered are folded

// Milliseconds before the next attempt from which on the page is refreshed each second.
const NEAR = 30_000;

const isNear = (message) =>
	message.recipients.some((each) => each.next_attempt_at && Date.parse(each.next_attempt_at) - Date.now() < NEAR);
const waits = (message) => message.recipients.some((each) => each.next_attempt_at);

function details(message) {
	const link = message.template && h("a", { href: templatePath(message.template) }, message.template);
	return facts([
		["Message id", h("code", null, message.id), copyButton(message.id, "message id")],
		["From", h("bdi", null, message.from)],
		["Envelope sender", h("code", null, message.envelope_from)],
		message.tags.length > 0 && [
			"Tags",
			message.tags.map((tag) => h("a", { class: "tag", href: query("/dashboard/messages", { tag }) }, tag)),
		],
		link && ["Template", link, ` version ${message.template_version}`],
		["Size", bytes(message.size)],
		["Credits", `${count(message.credits_reserved, "credit", "credits")}, ${message.billing_status}`],
		[
			"Accepted with request",
			h("code", null, message.accepted_request_id),
			copyButton(message.accepted_request_id, "request id"),
		],
	]);
}

function stories(message) {
	const many = message.recipients.length >= FOLDED;
	return message.recipients.map((each) =>
		timeline(message, each, many && each.status === "delivered" && !each.late_bounce),
	);
}

async function posts(message, signal, again) {
	try {
		const { deliveries } = await get(query("/v1/webhook/deliveries", { message_id: message.id, limit: 100 }), signal);
		return deliveries.length
			? [
					h("h2", null, "Webhook posts"),
					h(
						"div",
						{ class: "card posts" },
						deliveries.map((each) => shownPost(each, again)),
					),
				]
			: [];
	} catch (error) {
		return error.status === 404 ? [] : [errorText(error)];
	}
}

async function body(message, signal) {
	if (!message.body_kept) return section("What it says", h("p", { class: "quiet" }, "The body is no longer kept."));
	const found = await get(`${path("/v1/emails", message.id)}/body`, signal);
	const columns = [{ title: "Name" }, { title: "Value", class: "break" }];
	const files = found.attachments.map((each) => [
		h("bdi", null, each.filename),
		`${each.content_type}, ${bytes(each.size)}`,
	]);
	return section(
		"What it says",
		found.truncated && h("p", { class: "quiet" }, "It is long: not all of it is shown."),
		tabs(
			"What the message says",
			[
				found.html !== null && ["HTML", () => preview("The message as its reader sees it", found.html).frame],
				found.text !== null && ["Text", () => h("pre", { tabindex: "0" }, found.text)],
				files.length > 0 && [
					`Files (${files.length})`,
					() => table("Attached files", [{ title: "File" }, { title: "Kind and size" }], files),
				],
				[
					"Header",
					() =>
						table(
							"Header fields",
							columns,
							found.headers.map((each) => [
								h("code", null, each.name),
								h("code", { class: "break" }, h("bdi", null, each.value)),
							]),
						),
				],
			].filter(Boolean),
		),
	);
}

/** The list that the user came from, with its filters. */
function list() {
	const from = history.state?.from ?? "";
	return from.startsWith("/dashboard/messages?") ? from : "/dashboard/messages";
}

export default async function message(page) {
	const address = path("/v1/emails", page.params[0]);
	let [shown] = await Promise.all([get(address, page.signal), style("pages")]);
	const told = h("section");
	const story = h("div", null, stories(shown));
	const state = h("span", null, badge(standing(shown)));
	const about = h("div", { class: "card" }, details(shown));
	const cancel = button(
		"Cancel",
		async () => {
			if (
				!(await confirmed(
					"Cancel this message?",
					"Every recipient that still waits is given up. " +
						"Its credit goes back. " +
						"What a server is being given at this moment may still arrive.",
					"Cancel the message",
				))
			)
				return;
			const { cancelled } = await post(`${address}/cancel`);
			toast(`Cancelled for ${count(cancelled, "recipient", "recipients")}`);
			await renew();
		},
		"danger",
	);
	cancel.hidden = !waits(shown);

	const tell = async () => update(told, await posts(shown, page.signal, tell));
	async function renew() {
		const now = await get(address, page.signal);
		const changed = JSON.stringify(now.recipients) !== JSON.stringify(shown.recipients);
		shown = now;
		if (!changed) return;
		update(story, stories(shown));
		update(state, badge(standing(shown)));
		update(about, details(shown));
		cancel.hidden = !waits(shown);
		await tell();
	}
	let rounds = 0;
	page.every(1, async () => {
		rounds += 1;
		if (waits(shown)) await (rounds % 5 === 0 || isNear(shown) ? renew() : null);
		else if (rounds % 5 === 0 && rounds < 120) await tell(); // posts come a moment after the result
	});
	const [content] = await Promise.all([body(shown, page.signal).catch(errorText), tell()]);
	return fragment(
		head(shown.subject || "(no subject)", {
			crumb: { href: list(), title: "Messages" },
			badge: state,
			about: ["Accepted ", when(shown.created_at), ` for ${count(shown.recipient_count, "recipient", "recipients")}`],
			actions: [cancel],
		}),
		story,
		told,
		content,
		section("Details", about),
	);
}

/** `views` are [title, make] pairs; a view is made when it is first looked at. */
function tabs(label, views) {
	const panel = h("div", { role: "tabpanel", tabindex: "0", class: "panel" });
	const made = new Map();
	const buttons = views.map(([title, make], at) =>
		h(
			"button",
			{
				type: "button",
				role: "tab",
				onclick: () => choose(at),
				onkeydown: (event) => {
					const by = { ArrowRight: 1, ArrowLeft: views.length - 1 }[event.key];
					if (by) choose((at + by) % views.length).focus();
				},
			},
			title,
		),
	);
	function choose(at) {
		buttons.forEach((each, index) => {
			each.setAttribute("aria-selected", String(index === at));
			each.tabIndex = index === at ? 0 : -1;
		});
		if (!made.has(at)) made.set(at, views[at][1]());
		panel.setAttribute("aria-label", views[at][0]);
		panel.replaceChildren(made.get(at));
		return buttons[at];
	}
	choose(0);
	return h("div", null, h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), panel);
}
