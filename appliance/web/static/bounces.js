// Bounces and failures by class; loaded when there are any.
import { table } from "./pieces.js";
import { number } from "./time.js";

export function bounces(classes) {
	return table(
		"Refused, by class",
		[{ title: "Class" }, { title: "Bounced", class: "number" }, { title: "Failed", class: "number" }],
		classes.map((each) => [each.bounce_class.replace("_", " "), number(each.bounced), number(each.failed)]),
	);
}
