// The streams of this installation, for a choice.
import { get } from "./api.js";

/** Options of a select: `none`, the label for no stream, and each stream. A stream that is gone stays while chosen. */
export async function streamOptions(none, signal, current) {
	const { streams } = await get("/v1/streams?days=1", signal);
	const names = streams.map((each) => each.name);
	if (current && !names.includes(current)) names.push(current);
	return [["", none], ...names.map((each) => [each, each])];
}
