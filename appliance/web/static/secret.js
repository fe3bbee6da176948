// In charge of secrets that are shown once: a box to copy them from, and a button to say that it is done.
import { h } from "./dom.js";
import { button, copyButton, facts } from "./pieces.js";

/** The box; `rows` are [name, value] pairs, the secret among them. */
export function secretBox(title, rows, ...more) {
  const box = h("div", { class: "card secret stack", role: "region", "aria-label": title },
    h("h2", { tabindex: "-1" }, title),
    h("p", { class: "quiet" }, "Copy it now: it is shown only this once. The server keeps no more than a fingerprint of it."),
    facts(rows.map(([name, value]) => [name, h("code", { class: "break", "data-secret": name }, value), copyButton(value, name)])),
    more,
    h("div", { class: "actions" }, button("I have saved it", () => box.remove(), "primary")));
  return box;
}
