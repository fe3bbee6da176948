// In charge of telling which keys do something.
import { h } from "./dom.js";
import { dialog } from "./form.js";
import { facts } from "./pieces.js";

export function show() {
  const key = (text) => h("code", null, text);
  const sections = [...document.querySelectorAll(".rail nav li:not([hidden]) a")].map((link) => [link.textContent.trim(), key(`g ${link.dataset.key}`)]);
  dialog("Keyboard", (close) => [
    facts([["Find a message, an address, a domain", key("/")], ["Next and previous row", key("j"), " ", key("k")], ["Open the row", key("Enter")], ...sections]),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: close }, "Close")),
  ]);
}
