"""Checks a finished message for what a deliverability expert would object to. Pure: no I/O, no state.

The HTML is only scanned for tags and style sheets, once from start to end. HTML over the limits of `text_from_html` is
not scanned.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from appliance.errors import Refused
from appliance.message.addresses import parse
from appliance.message.limits import MAILBOX_LENGTH
from appliance.message.reader import MessageView
from appliance.message.text_from_html import ATTRIBUTE, HTML_LENGTH, MARKS, TAG, attribute_value

CLIPPED_FROM: Final = 102 * 1024  # bytes of HTML
VALUE_SHOWN: Final = 60  # characters of a value at fault
NAMED: Final = 3  # links and images that one finding names
LINKS: Final = 200

Level = Literal["error", "warning", "info"]


class MessageFault(NamedTuple):
    level: Level
    title: str
    detail: str
    source: str = ""  # URL of the rule


class LinkTarget(NamedTuple):
    target: str
    text: str


class Dropped(NamedTuple):
    """HTML or CSS that a mail program drops."""

    what: str
    where: str
    source: str
    pattern: re.Pattern[str]


def _css(what: str, where: str, feature: str, pattern: str) -> Dropped:
    return Dropped(what, where, f"https://www.caniemail.com/features/{feature}/", re.compile(pattern, re.IGNORECASE))


# The best-known cases, each with the page that documents it.
DROPPED_CSS: Final = (
    _css("display: flex", "Outlook for Windows", "css-display-flex", r"display\s*:\s*(?:inline-)?flex"),
    _css("display: grid", "Gmail and Outlook for Windows", "css-display-grid", r"display\s*:\s*(?:inline-)?grid"),
    _css("position", "Gmail and Outlook for Windows", "css-position", r"position\s*:\s*(?:absolute|fixed|sticky)"),
    _css("CSS variables", "Gmail and Outlook for Windows", "css-variables", r"var\s*\(\s*--"),
    _css(
        "background images", "Outlook for Windows", "css-background-image", r"background(?:-image)?\s*:[^;}]{0,200}url"
    ),
    _css("@import", "Gmail and Outlook", "css-at-import", r"@import\b"),
    _css("web fonts", "Gmail and Outlook", "css-at-font-face", r"@font-face"),
    _css("animations", "Gmail and Outlook for Windows", "css-animation", r"@keyframes|animation\s*:"),
    _css("box-shadow", "Gmail and Outlook for Windows", "css-box-shadow", r"box-shadow\s*:"),
    _css("border-radius", "Outlook for Windows", "css-border-radius", r"border-radius\s*:"),
)
_FEATURE: Final = "https://www.caniemail.com/features/"
_LIMITATIONS: Final = "https://mailchimp.com/help/limitations-of-html-email/"
DROPPED_TAGS: Final = {
    "script": ("every mail program", _LIMITATIONS),
    "iframe": ("every mail program", _LIMITATIONS),
    "object": ("every mail program", f"{_FEATURE}html-object/"),
    "embed": ("every mail program", f"{_FEATURE}html-object/"),
    "link": ("Gmail and Outlook", f"{_FEATURE}html-link/"),
    "form": ("Outlook and many others", f"{_FEATURE}html-form/"),
    "video": ("Gmail and Outlook", f"{_FEATURE}html-video/"),
    "audio": ("Gmail and Outlook", f"{_FEATURE}html-audio/"),
    "svg": ("Gmail and Outlook", f"{_FEATURE}html-svg/"),
}
_CLIPPING: Final = "https://mailchimp.com/help/gmail-is-clipping-my-email/"
_BULK: Final = "https://support.google.com/mail/answer/81126"
_HEADERS: Final = "https://www.rfc-editor.org/rfc/rfc5322#section-2.2"

_HREF, _SRC, _STYLE, _ALT, _WIDTH = (
    re.compile(ATTRIBUTE % name, re.IGNORECASE) for name in ("href", "src", "style", "alt", "width")
)
_HAS_ALT: Final = re.compile(r"(?:^|[\s/\"'])alt(?:\s*=|[\s/]|$)", re.IGNORECASE)
_STYLE_END: Final = re.compile("</style", re.IGNORECASE)
_MARKUP: Final = re.compile(r"<[^<>]{0,2000}>")
_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{%|%7B%7B|\$\{|<%|\*\|", re.IGNORECASE)


class _Html(NamedTuple):
    tags: list[tuple[str, str]]  # name and attributes of start tags
    css: str  # of style sheets and style attributes
    links: list[LinkTarget]


def links_of(view: MessageView) -> list[LinkTarget]:
    """The links of the HTML in order, with their texts."""
    return _scan(view.html or "").links[:LINKS]


def check_message(view: MessageView, size: int) -> list[MessageFault]:
    """The findings about a message of `size` bytes, the most serious first."""
    html = _scan(view.html or "")
    headers = {name.lower(): value for name, value in reversed(view.headers)}
    findings = [
        *_structure(view, size),
        *_addresses(headers),
        *_subject(view.headers),
        *_bulk(headers),
        *_links(html.links),
        *_images(html.tags),
        *_dropped(html),
    ]
    order: dict[str, int] = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda finding: order[finding.level])


def _structure(view: MessageView, size: int) -> Iterator[MessageFault]:
    if view.html is not None and not (view.text or "").strip():
        detail = "The message has only HTML. Some programs show the text part, and spam filters expect one."
        yield MessageFault("warning", "No text part", detail)
    if view.html is None and not (view.text or "").strip():
        yield MessageFault("warning", "No content", "The message has neither text nor HTML.")
    if view.html is not None and (length := len(view.html.encode("utf-8", "replace"))) > CLIPPED_FROM:
        detail = f"The HTML has {length:,} bytes. Gmail cuts it off after {CLIPPED_FROM:,} and hides the rest."
        yield MessageFault("warning", "HTML is clipped by Gmail", detail, _CLIPPING)
    if size > 5 * 1024 * 1024:
        detail = f"The message has {size:,} bytes. Large messages arrive late, and some servers refuse them."
        yield MessageFault("info", "Large message", detail)


def _addresses(headers: dict[str, str]) -> Iterator[MessageFault]:
    sender, reply_to = headers.get("from", ""), headers.get("reply-to", "")
    if not sender:
        yield MessageFault("error", "No From", "Servers refuse a message without From.", _BULK)
    domain, reply_domain = _domain(sender), _domain(reply_to)
    if domain and reply_domain and not _related(domain, reply_domain):
        detail = f"From is at {domain}, Reply-To at {reply_domain}. Spam filters treat different domains as a warning."
        yield MessageFault("warning", "From and Reply-To differ", detail)
    if domain == "localhost" or domain.endswith((".localhost", ".local", ".test", ".invalid")):
        detail = f"{domain} exists on this machine only. Set the sender's domain before you go live."
        yield MessageFault("info", "From is a local domain", detail)


def _subject(headers: list[tuple[str, str]]) -> Iterator[MessageFault]:
    subject = next((value for name, value in headers if name.lower() == "subject"), "")
    if not subject.strip():
        yield MessageFault("warning", "No subject", "Spam filters distrust a message without a subject.")
    elif found := _PLACEHOLDER.search(subject):
        detail = f"The subject contains {found[0]}: a placeholder was not filled in."
        yield MessageFault("error", "Placeholder in the subject", detail)


def _bulk(headers: dict[str, str]) -> Iterator[MessageFault]:
    is_bulk = headers.get("precedence", "").lower() in ("bulk", "list") or "list-id" in headers
    if is_bulk and "list-unsubscribe" not in headers:
        detail = "Gmail and Yahoo require one-click unsubscribe in bulk mail. Send it in the stream broadcast."
        yield MessageFault("error", "No List-Unsubscribe", detail, _BULK)
    elif "list-unsubscribe" in headers and "list-unsubscribe-post" not in headers:
        detail = "Gmail and Yahoo require List-Unsubscribe-Post: List-Unsubscribe=One-Click besides List-Unsubscribe."
        yield MessageFault("warning", "Unsubscribe is not one-click", detail, _BULK)


def not_ascii(mime: bytes) -> list[MessageFault]:
    """The finding about a header with bytes outside ASCII, which need encoded words."""
    lines = mime.partition(b"\r\n\r\n")[0].split(b"\r\n")
    faulty = [line.partition(b":")[0].decode("ascii", "replace") for line in lines if not line.isascii()]
    if not faulty:
        return []
    names = ", ".join(dict.fromkeys(name[:VALUE_SHOWN] for name in faulty[:NAMED]))
    detail = f"{names}: write other characters as encoded words. Servers without SMTPUTF8 refuse them."
    return [MessageFault("warning", "Header is not ASCII", detail, _HEADERS)]


def _links(links: list[LinkTarget]) -> Iterator[MessageFault]:
    faults: dict[tuple[Level, str, str], list[str]] = {}
    for link in links:
        if fault := _fault_in(link.target):
            faults.setdefault(fault, []).append(link.target)
    for (level, title, detail), targets in faults.items():
        yield MessageFault(level, title, f"{detail} {_listed(targets)}")


def _fault_in(target: str) -> tuple[Level, str, str] | None:
    if not target or target == "#":
        return "error", "Link without a target", "A link leads nowhere."
    if _PLACEHOLDER.search(target):
        return "error", "Placeholder in a link", "A placeholder was not filled in."
    scheme = target.partition(":")[0].lower()
    if target.startswith(("#", "cid:")) or scheme in ("mailto", "tel", "sms"):
        return None
    try:
        parts = urlsplit(target)
        host = parts.hostname or ""
    except ValueError:
        return "error", "Broken link", "This is not a valid URL."
    if scheme == "javascript":
        return "error", "Script in a link", "Mail programs remove it."
    if parts.scheme not in ("http", "https") or not host:
        return "error", "Relative link", "A message has no base address. Write the whole URL with https://."
    if " " in target or not target.isprintable():
        return "error", "Broken link", "A URL must not contain spaces. Write them as %20."
    if "." not in host or host.endswith((".local", ".test", ".localhost")) or host == "127.0.0.1":
        return "info", "Link to this machine", "Set the public address before you go live."
    return ("info", "Link without TLS", "Use https.") if parts.scheme == "http" else None


def _images(tags: list[tuple[str, str]]) -> Iterator[MessageFault]:
    images = [attributes for name, attributes in tags if name == "img"]
    without_alt = [_source(image) for image in images if not _HAS_ALT.search(image)]
    if without_alt:
        detail = "Many programs block images and show alt instead. Use an empty alt for decoration."
        yield MessageFault("warning", "Image without alt", f"{detail} {_listed(without_alt)}")
    embedded = [image for image in images if _source(image).startswith("data:")]
    if embedded:
        detail = f"{len(embedded)} of {len(images)} images are data: URLs. Gmail and Outlook do not show them."
        yield MessageFault("warning", "Image in a data: URL", detail, f"{_FEATURE}image-base64/")


def _dropped(html: _Html) -> Iterator[MessageFault]:
    names = {name for name, _ in html.tags}
    for name, (where, source) in DROPPED_TAGS.items():
        if name in names:
            yield MessageFault("warning", f"<{name}> is dropped", f"Dropped by {where}.", source)
    for feature in DROPPED_CSS:
        if feature.pattern.search(html.css):
            yield MessageFault("info", f"Ignored CSS: {feature.what}", f"Ignored by {feature.where}.", feature.source)


def _scan(markup: str) -> _Html:
    tags: list[tuple[str, str]] = []
    css: list[str] = []
    links: list[LinkTarget] = []
    if len(markup) > HTML_LENGTH or markup.count("<") > MARKS:
        return _Html(tags, "", links)
    at, opened = 0, -1  # where the text of the last link begins
    while (start := markup.find("<", at)) >= 0:
        if markup.startswith("<!--", start):
            end = markup.find("-->", start)
            at = len(markup) if end < 0 else end + 3
            continue
        if (tag := TAG.match(markup, start)) is None:
            at = start + 1
            continue
        at, name = tag.end(), tag[2].lower()
        if name == "a" and opened >= 0:
            words = " ".join(_MARKUP.sub(" ", markup[opened:start][: 10 * VALUE_SHOWN]).split())
            links[-1] = links[-1]._replace(text=words[:VALUE_SHOWN])
            opened = -1
        if tag[1]:
            continue
        tags.append((name, tag[3]))
        css.append(attribute_value(_STYLE, tag[3]))
        if name == "a" and _HREF.search(tag[3]):
            links.append(LinkTarget(attribute_value(_HREF, tag[3]), ""))
            opened = at
        elif name == "style":
            end_tag = _STYLE_END.search(markup, at)
            end = len(markup) if end_tag is None else end_tag.start()
            css.append(markup[at:end])
            at = end
    return _Html(tags, "\n".join(css), links)


def _source(attributes: str) -> str:
    return attribute_value(_SRC, attributes)


def _listed(values: list[str]) -> str:
    shown = ", ".join(f"“{value[:VALUE_SHOWN]}”" for value in values[:NAMED])
    return shown + (f" and {len(values) - NAMED} more" if len(values) > NAMED else "")


def _domain(text: str) -> str:
    try:
        return parse(text[:MAILBOX_LENGTH], "address").domain
    except Refused:
        return ""


def _related(one: str, other: str) -> bool:
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")
