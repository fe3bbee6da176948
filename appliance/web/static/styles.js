// In charge of styles that only some pages need: there before the page is shown.
const asked = new Map();

/** A stylesheet of ours, once. */
export function style(name) {
  if (!asked.has(name)) {
    asked.set(name, new Promise((resolve) => {
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = new URL(`./${name}.css`, import.meta.url);
      link.onload = link.onerror = resolve;
      document.head.append(link);
    }));
  }
  return asked.get(name);
}
