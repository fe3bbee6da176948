// In charge of what stands where a page could not be shown.
import { fragment, h } from "./dom.js";
import { button, errorText, head } from "./pieces.js";

export function failure(error) {
  return fragment(
    head(error.status === 404 ? "Nothing here" : "This did not work"),
    h("div", { class: "card" }, errorText(error)),
    h("p", { class: "row actions" }, button("Try again", () => location.reload()), h("a", { class: "button", href: "/dashboard" }, "Overview")));
}
