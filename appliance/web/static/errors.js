// Shows an API error.
import { copyButton } from "./basics.js";
import { h } from "./dom.js";

/** The API's text, with the request id under "Details". */
export const errorText = (error, text = error.message) =>
	h(
		"div",
		{ class: "error", role: "alert" },
		text,
		error.requestId &&
			h(
				"details",
				null,
				h("summary", null, "Details"),
				"Request ",
				h("code", null, error.requestId),
				" ",
				copyButton(error.requestId, "request id"),
			),
	);
