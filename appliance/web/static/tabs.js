// In charge of several views in one place: a list of tabs, moved through with the arrow keys.
import { h } from "./dom.js";

/** `views` are [title, make] pairs; a view is made when it is first looked at. */
export function tabs(label, views) {
  const panel = h("div", { role: "tabpanel", tabindex: "0", class: "panel" });
  const made = new Map();
  const buttons = views.map(([title, make], at) => h("button", {
    type: "button", role: "tab", onclick: () => choose(at),
    onkeydown: (event) => {
      const by = { ArrowRight: 1, ArrowLeft: views.length - 1 }[event.key];
      if (by) choose((at + by) % views.length).focus();
    },
  }, title));
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
