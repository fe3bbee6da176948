"""Makes the text part of a message that was sent as HTML alone. Pure: no I/O, no state.

It converts paragraphs, lists, entities and links (as `text (address)`), and drops scripts, styles and comments. No HTML
makes it fail or take long: it reads each character once, and HTML over the limits gets no text part.
"""

import html.entities
import re
from typing import Final

from msgspec import Struct, field

from appliance.message.characters import fault_in_body

HTML_LENGTH: Final = 1024 * 1024  # characters
MARKS: Final = 10_000  # of `<` and `&`; a long newsletter has 4,000

# Matches wherever a tag starts, closed or not, so it consumes what it reads. Only an unclosed quote is searched to the
# end, once for each kind of quote.
TAG: Final = re.compile(r"""<(/?)([A-Za-z][A-Za-z0-9-]*)((?:[^<>"']+|"[^"]*"|'[^']*'|["'])*)>?""")
_ENTITY: Final = re.compile(r"&(?:#([0-9]{1,7})|#[xX]([0-9A-Fa-f]{1,6})|([A-Za-z][A-Za-z0-9]{1,31}));?")
ATTRIBUTE: Final = r"""(?:^|[\s/"'])%s\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"""
_HREF: Final = re.compile(ATTRIBUTE % "href", re.IGNORECASE)
_ALT: Final = re.compile(ATTRIBUTE % "alt", re.IGNORECASE)
_SCHEME: Final = re.compile(r"(?:https?|mailto|tel):", re.IGNORECASE)

_LEFT_OUT: Final = {
    name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "title", "textarea", "template")
}
_NEW_LINE: Final = {
    "address", "article", "aside", "center", "dd", "details", "dialog", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "header", "li", "main", "nav", "section", "summary", "tr",
}  # fmt: skip
_NEW_PARAGRAPH: Final = {"blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "ol", "p", "pre", "table", "ul"}
_LISTS: Final = 10  # indented levels


def _marks(markup: str) -> int:
    return markup.count("<") + markup.count("&")


def cost_of_html(markup: str, inserted: int = 0) -> int:
    """Estimate four microseconds per mark; `inserted` counts characters that placeholders may add."""
    return 4 * min(_marks(markup) + inserted, MARKS)


def text_from_html(markup: str) -> str | None:
    """Return the text of HTML; None if it is empty or exceeds the limits."""
    if len(markup) > HTML_LENGTH or _marks(markup) > MARKS:
        return None
    page, at, end = _Page(), 0, len(markup)
    while at < end:
        start = markup.find("<", at)
        if start != at:
            page.write(markup[at : start if start > 0 else end])
        at = end if start < 0 else _after_mark(markup, start, page)
    text = "".join(page.written).strip()
    return None if not text or fault_in_body(text) else text


def _after_mark(markup: str, start: int, page: "_Page") -> int:
    if markup.startswith("<!--", start):
        return _after(markup, "-->", start)
    if (tag := TAG.match(markup, start)) is not None:
        closes, name, attributes = tag[1] == "/", tag[2].lower(), tag[3]
        if not closes and name in _LEFT_OUT:
            end = _LEFT_OUT[name].search(markup, tag.end())
            return len(markup) if end is None else end.start()
        page.tag(name, attributes, closes=closes)
        return tag.end()
    if markup[start + 1 : start + 2] in ("!", "?", "/"):
        return _after(markup, ">", start)
    page.write("<")
    return start + 1


def _after(markup: str, end: str, start: int) -> int:
    position = markup.find(end, start)
    return len(markup) if position < 0 else position + len(end)


class _Page(Struct):
    """The text so far, and the pending separators before the next word."""

    written: list[str] = field(default_factory=list)
    _lines: int = 0  # line breaks
    _space: bool = False
    _mark: str = ""  # of a list item
    _lists: list[int | None] = field(default_factory=list)  # the number of an ordered one's last item
    _preformatted: int = 0
    _link: str = ""
    _link_from: int = 0  # where in `written` its text begins

    def write(self, raw: str) -> None:
        text = _ENTITY.sub(_character, raw) if "&" in raw else raw
        if self._preformatted:
            self._put(text.replace("\r", "").strip("\n"))
            return
        words = " ".join(text.split())
        self._space = self._space or text[:1].isspace()
        if words:
            self._put(words)
            self._space = text[-1].isspace()

    def _put(self, text: str) -> None:
        if self.written:
            self.written.append("\n" * self._lines or (" " if self._space else ""))
        self.written += (self._mark, text)
        self._lines, self._space, self._mark = 0, False, ""

    def _break(self, lines: int) -> None:
        self._lines = max(self._lines, lines)
        self._space = False

    def tag(self, name: str, attributes: str, *, closes: bool) -> None:
        if name == "br":
            self._lines = min(self._lines + 1, 2)
        elif name in _NEW_PARAGRAPH:
            self._break(1 if name in ("ul", "ol") and len(self._lists) > closes else 2)
        elif name in _NEW_LINE:
            self._break(1)
        elif name in ("td", "th"):
            self._space = True
        if name in ("ul", "ol"):
            if not closes:
                self._lists.append(0 if name == "ol" else None)
            elif self._lists:
                self._lists.pop()
        elif name == "li" and not closes:
            number = None
            if self._lists and (last := self._lists[-1]) is not None:
                number = self._lists[-1] = last + 1
            indent = "  " * min(len(self._lists) - 1, _LISTS)
            self._mark = indent + ("- " if number is None else f"{number}. ")
        elif name == "pre":
            self._preformatted = max(self._preformatted + (-1 if closes else 1), 0)
        elif name == "hr":
            self._put("-" * 20)
            self._break(2)
        elif name == "a":
            self._anchor("" if closes else attribute_value(_HREF, attributes))
        elif name == "img" and (words := " ".join(attribute_value(_ALT, attributes).split())):
            self._put(words)

    def _anchor(self, address: str) -> None:
        """Start a link, or end one: its address follows its text unless they are equal."""
        if self._link:
            text = "".join(self.written[self._link_from :]).strip()
            shown = self._link.removeprefix("mailto:").removeprefix("tel:")
            if shown.rstrip("/") not in (text.rstrip("/"), f"https://{text}".rstrip("/"), f"http://{text}".rstrip("/")):
                lines, self._lines = self._lines, 0
                self._space = bool(text)
                self._put(f"({shown})" if text else shown)
                self._lines = lines
        usable = _SCHEME.match(address) and address.isprintable() and " " not in address
        self._link, self._link_from = (address if usable else ""), len(self.written)


def attribute_value(attribute: re.Pattern[str], attributes: str) -> str:
    match = attribute.search(attributes)
    return _ENTITY.sub(_character, match[1] or match[2] or match[3] or "").strip() if match else ""


def _character(entity: re.Match[str]) -> str:
    """Return the character of an entity; nothing for forbidden characters, and unknown entities unchanged."""
    if entity[3] is not None:
        return html.entities.html5.get(f"{entity[3]};", entity[0])
    number = int(entity[1]) if entity[1] is not None else int(entity[2], 16)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        return ""
    character = chr(number)
    return "" if fault_in_body(character) else character
