// In charge of templates as the server fills them in: which variables there are, and what comes of them.
const PLACEHOLDER = /\{\{ *([A-Za-z_][A-Za-z0-9_.-]{0,63}) *\}\}/g;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };

/** The names in these sources, by the alphabet. */
export function variables(...sources) {
  const found = new Set();
  for (const source of sources) for (const [, name] of source.matchAll(PLACEHOLDER)) found.add(name);
  return [...found].sort();
}

export const escaped = (value) => value.replace(/[&<>"']/g, (each) => ESCAPES[each]);

/** A source with its values, each put in once; a name without a value stays as it is. */
export const filled = (source, values, write = (value) => value) =>
  source.replace(PLACEHOLDER, (whole, name) => (Object.hasOwn(values, name) && values[name] !== "" ? write(values[name]) : whole));
