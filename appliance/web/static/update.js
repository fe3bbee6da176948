// Updates shown content without losing focus, selected text or opened parts.
import { fragment } from "./dom.js";

/**
 * Show new content in a place, and keep nodes that stay: those with the same `data-key` or `data-id`, and between
 * them nodes of the same kind at the same position. A node with listeners belongs to its content: it is kept only
 * inside a keyed node, and only with the same label.
 */
export function update(place, ...content) {
	children(place, fragment(...content), false);
}

// Attributes that the browser or a component sets while the content is shown.
const KEPT = new Set(["open", "aria-busy", "aria-expanded", "style"]);

const key = (node) => node?.dataset?.key ?? node?.dataset?.id;

function children(place, fresh, keyed) {
	const known = new Map([...place.children].filter(key).map((each) => [key(each), each]));
	let at = place.firstChild;
	for (const node of [...fresh.childNodes]) {
		const old = key(node) ? known.get(key(node)) : at;
		if (old && stays(old, node, keyed)) {
			if (old === at) at = at.nextSibling;
			else place.insertBefore(old, at);
			same(old, node, keyed || Boolean(key(node)));
		} else {
			place.insertBefore(node, at);
			if (old && old === at && !key(old)) {
				const focused = old === document.activeElement;
				at = at.nextSibling;
				old.remove();
				if (focused) node.focus?.();
			}
		}
	}
	while (at) {
		const next = at.nextSibling;
		at.remove();
		at = next;
	}
}

const label = (node) => node.ariaLabel ?? node.textContent;

const stays = (old, node, keyed) =>
	old.nodeName === node.nodeName &&
	key(old) === key(node) &&
	(!(old.listens || node.listens) || (keyed && label(old) === label(node)));

function same(old, node, keyed) {
	if (node.nodeType !== Node.ELEMENT_NODE) {
		if (old.data !== node.data) old.data = node.data;
		return;
	}
	for (const { name } of [...old.attributes])
		if (!node.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
	for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
	children(old, node, keyed);
}
