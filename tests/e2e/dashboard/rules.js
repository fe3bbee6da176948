// The rules that every page has to keep so that it can be used without eyes, mouse or colours.
// Gives a list of sentences: what breaks which rule.
const found = [];
const visible = (each) => each.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !each.closest("[aria-hidden=true]");
const all = (css) => [...document.querySelectorAll(css)].filter(visible);
const told = (each) => `<${each.tagName.toLowerCase()} class="${each.getAttribute("class") ?? ""}"> ${each.textContent.trim().slice(0, 40)}`;
const named = (each) => {
  const ids = (each.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean);
  const labels = [...(each.labels ?? []), ...ids.map((id) => document.getElementById(id))];
  const words = [each.getAttribute("aria-label"), each.getAttribute("title"), each.getAttribute("alt"), ...labels.map((label) => label?.textContent)];
  return words.some((word) => word?.trim()) || (!["INPUT", "SELECT", "TEXTAREA"].includes(each.tagName) && each.textContent.trim() !== "");
};
const rule = (name, broken) => broken.forEach((each) => found.push(`${name}: ${typeof each === "string" ? each : told(each)}`));
const channels = (colour) => { const parts = colour.match(/[\d.]+/g).map(Number); return [parts[0], parts[1], parts[2], parts[3] ?? 1]; };
const light = ([r, g, b]) => [r, g, b].map((each) => each / 255).map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)).reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];

rule("a language", document.documentElement.lang ? [] : ["html"]);
rule("a title", document.title.trim() ? [] : ["document"]);
rule("controls, links, frames, tables and dialogs have a name", all("input, select, textarea, button, a[href], iframe, summary, table, dialog, [role=img], [role=tab], [role=listbox], nav").filter((each) => !named(each)));
const landmarks = all("[role=search], nav, main, aside").map((each) => `${each.getAttribute("role") ?? each.tagName} ${each.getAttribute("aria-label")}`);
rule("landmarks of a kind have names of their own", landmarks.filter((each, at) => landmarks.indexOf(each) !== at));
rule("the name of a control has its text in it", all("button[aria-label], a[aria-label]").filter((each) => /\w/.test(each.textContent) && !each.ariaLabel.toLowerCase().includes(each.textContent.trim().toLowerCase())));
rule("links in a text are underlined, buttons, or far enough from it in colour", all("p a[href]:not(.button)").filter((each) => {
  const style = getComputedStyle(each);
  const around = [...each.parentElement.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim().length > 1);
  if (!around || style.textDecorationLine !== "none" || style.display !== "inline") return false;
  const [one, two] = [light(channels(style.color)), light(channels(getComputedStyle(each.parentElement).color))].sort((a, b) => b - a);
  return (one + 0.05) / (two + 0.05) < 3;
}));
rule("pictures have a text", all("img").filter((each) => !each.hasAttribute("alt")));
rule("one first heading", document.querySelectorAll("h1").length === 1 ? [] : ["h1"]);
const levels = all("h1, h2, h3, h4, h5, h6").map((each) => Number(each.tagName[1]));
rule("no heading is skipped", levels.flatMap((level, at) => (at && level > levels[at - 1] + 1 ? [`h${level} after h${levels[at - 1]}`] : [])));
rule("one main part", document.querySelectorAll("main").length === 1 ? [] : ["main"]);
const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
rule("an id is used once", ids.filter((id, at) => ids.indexOf(id) !== at));
for (const name of ["for", "aria-labelledby", "aria-describedby", "aria-controls", "aria-activedescendant"]) {
  rule(`${name} leads somewhere`, all(`[${name}]`).filter((each) => each.getAttribute(name).split(" ").some((id) => id && !document.getElementById(id))));
}
rule("the order of focus is that of the page", all("[tabindex]").filter((each) => each.tabIndex > 0));
rule("heads of columns say so", all("thead th").filter((each) => each.scope !== "col"));
rule("what scrolls can be reached by keys", all("pre, .table").filter((each) => each.scrollHeight > each.clientHeight + 1 && getComputedStyle(each).overflowY !== "visible" && each.tabIndex < 0 && !each.querySelector("a, button, input")));
rule("heads of columns have a text", all("thead th").filter((each) => !each.textContent.trim()));
rule("lists hold items only", all("ul, ol").flatMap((each) => [...each.children].filter((child) => child.tagName !== "LI" && child.tagName !== "SCRIPT")));
rule("a control in a control", all("a a, a button, button a, button button, summary button, summary a"));
rule("touched with a finger", innerWidth < 720 ? all("button, .rail nav a").filter((each) => { const box = each.getBoundingClientRect(); return box.height < 24 || box.width < 24; }) : []);

// Contrast, by WCAG 2.2 1.4.3: 4.5, or 3 for large text.
function behind(each) {
  if (!each) return [255, 255, 255, 1];
  const colour = channels(getComputedStyle(each).backgroundColor);
  return colour[3] === 1 ? colour : over(colour, behind(each.parentElement));
}
// Borders of what is used, by WCAG 2.2 1.4.11: 3. What has none is told by its text.
for (const each of all("input:not([type=checkbox], [type=radio], [type=file]), select, textarea, button, .button")) {
  const style = getComputedStyle(each);
  const edge = channels(style.borderTopColor);
  if (each.disabled || each.ariaBusy || !parseFloat(style.borderTopWidth) || !edge[3]) continue;
  const [one, two] = [light(edge), light(behind(each.parentElement))].sort((a, b) => b - a);
  if ((one + 0.05) / (two + 0.05) < 3) found.push(`border ${((one + 0.05) / (two + 0.05)).toFixed(2)}: ${told(each)}`);
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const each = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !visible(each) || each.closest(":disabled, noscript, script, option, .gone, .skip")) continue;
  const style = getComputedStyle(each);
  const back = behind(each);
  const [one, two] = [light(over(channels(style.color), back)), light(back)].sort((a, b) => b - a);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
  const ratio = (one + 0.05) / (two + 0.05);
  if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${told(each)}`);
}
return [...new Set(found)];
