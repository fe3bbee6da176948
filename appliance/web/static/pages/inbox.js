// The inbox of `appliance dev`: all messages, newest first, and the content of one.
import { h } from "../dom.js";

export default async function inbox() {
	return [h("h1", { tabindex: "-1" }, "Inbox")];
}
