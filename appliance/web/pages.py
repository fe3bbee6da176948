"""Pages outside the API: the dashboard's frame and files, the documentation as Markdown, and links in mail and events.

The frame is the same for every account; its scripts get the account's data from /v1. Files are read once. Their URL
changes with their content, so browsers may cache them for a year.
"""

import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache, partial, wraps
from importlib.resources import files
from importlib.resources.abc import Traversable
from posixpath import normpath
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined
from quart import Blueprint, Response, request

from appliance.errors import Code, PublicError, Refused
from appliance.feedback.return_path import UNSUBSCRIBE_PATH, Unsubscription
from appliance.intake.limits import RequestRate
from appliance.keys.received_links import RAW, RECEIVED_PATH
from appliance.net.address_policy import client_network
from appliance.telemetry.metrics import UNSUBSCRIBES
from appliance.web.api.message_body import OCTETS, RAW_MESSAGE, encoded_attachment
from appliance.web.app import ApiServices, answer, client_address, may_compress, not_modified, refusal
from appliance.web.documents import DOCUMENTS_PATH, LIST_PATH, document_list, documents
from appliance.web.exchange import CONTENT_SECURITY_POLICY, request_id

DASHBOARD_ROOT = "/dashboard"
CACHE_A_YEAR = "public, max-age=31536000, immutable"
_PLAIN, _MARKDOWN = "text/plain; charset=utf-8", "text/markdown; charset=utf-8"
REVALIDATE = "no-cache"  # cached, but revalidated every time

SiteFile = tuple[bytes, str, str]  # body, content type and ETag

PAGE_POLICY = f"{CONTENT_SECURITY_POLICY.decode()}; frame-src 'self'"
# The dashboard's scripts put mail into this page. Nothing in it may run, load or be sent; only its own style applies.
PREVIEW_POLICY = (
    "sandbox allow-same-origin; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
# For a viewer who asked for remote images. Their servers learn that the mail was opened.
IMAGES_POLICY = PREVIEW_POLICY.replace("img-src data:", "img-src data: https: http:")
CONTENT_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


def etag_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _site_files(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, SiteFile]]:
    for entry in directory.iterdir():
        kind = CONTENT_TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            yield from _site_files(entry, f"{prefix}{entry.name}/")
        elif kind is not None:
            body = entry.read_bytes()
            yield f"{prefix}{entry.name}", (body, kind, etag_of(body))


class Section(NamedTuple):
    """An entry of the navigation. The keys `g` and `key` open it."""

    name: str
    path: str
    title: str
    key: str
    for_admins: bool = False


DASHBOARD_SECTIONS = (
    Section("overview", DASHBOARD_ROOT, "Overview", "o"),
    Section("messages", f"{DASHBOARD_ROOT}/messages", "Messages", "m"),
    Section("feedback", f"{DASHBOARD_ROOT}/feedback", "Feedback", "f"),
    Section("domains", f"{DASHBOARD_ROOT}/domains", "Domains", "d"),
    Section("received", f"{DASHBOARD_ROOT}/received", "Received", "i"),
    Section("streams", f"{DASHBOARD_ROOT}/streams", "Streams", "b"),
    Section("templates", f"{DASHBOARD_ROOT}/templates", "Templates", "t"),
    Section("webhook", f"{DASHBOARD_ROOT}/webhook", "Webhook", "w"),
    Section("requests", f"{DASHBOARD_ROOT}/requests", "Requests", "r"),
    Section("suppressions", f"{DASHBOARD_ROOT}/suppressions", "Suppressions", "s"),
    Section("keys", f"{DASHBOARD_ROOT}/keys", "Keys & credentials", "k"),
    Section("audit", f"{DASHBOARD_ROOT}/audit", "Audit log", "l"),
    Section("account", f"{DASHBOARD_ROOT}/account", "Account", "a"),
    Section("admin", f"{DASHBOARD_ROOT}/admin", "Admin", "q", for_admins=True),
    Section("sources", f"{DASHBOARD_ROOT}/sources", "Sources", "u", for_admins=True),
)


# Instead, in `appliance dev`, whose only account sends from every domain.
INBOX_SECTIONS = (
    Section("inbox", f"{DASHBOARD_ROOT}/inbox", "Inbox", "i"),
    *(section for section in DASHBOARD_SECTIONS if section.name in ("overview", "messages", "templates", "webhook")),
    *(section for section in DASHBOARD_SECTIONS if section.name in ("requests", "suppressions")),
)
SANDBOX_NOTICE = "Sandbox: no mail leaves this server. Results are simulated."
INBOX_NOTICE = "Development: nothing leaves this machine. Results are simulated."


class Page(NamedTuple):
    """A page of the dashboard, by the first part of its path. The frame tells the scripts the same table."""

    section: str
    title: str
    item: str = ""  # script of the pages below its path
    depth: int = 0  # path parts below it, at most


_ITEMS = {
    "messages": "message",
    "requests": "request",
    "domains": "domain",
    "templates": "template",
    "received": "received-message",
}
DASHBOARD_PAGES = {
    section.path.removeprefix(DASHBOARD_ROOT).lstrip("/"): Page(
        section.name, section.title, _ITEMS.get(section.name, ""), int(section.name in _ITEMS)
    )
    for section in DASHBOARD_SECTIONS
}
DASHBOARD_PAGES |= {
    "admin": Page("admin", "Admin", "managed", 4),
    "receiving": Page("received", "Receiving addresses", "receiving-address", 1),
    "people": Page("account", "People"),
    "statistics": Page("overview", "Statistics"),
    "deliverability": Page("overview", "Deliverability"),
    "login": Page("login", "Log in"),
    "invitation": Page("login", "Set a password"),
    "forgotten": Page("login", "Forgot your password?"),
}
INBOX_PAGES = DASHBOARD_PAGES | {"inbox": Page("inbox", "Inbox")}


_IMPORT = re.compile(rb'^(?:import|export)\b[^"]*"(\.\.?/[\w/-]+\.js)";', re.MULTILINE)
# What the overview of an account that sends loads besides what its script imports.
_WITH_NUMBERS = ("chart.js", "overview-tables.js", "attention.js")


# All stylesheets are one file, in this order and then by name: each file is a request, and browsers make few at once.
STYLES = "dashboard.css"
_FIRST_STYLES = ("tokens.css", "frame.css", "pieces.css", "lists.css", "forms.css", "overview.css", "pages.css")


def _modules(site: dict[str, SiteFile], script: str) -> list[str]:
    """A page's script and all that it imports: a browser requests them together, not one by one."""
    names, pending = dict[str, None](), [script, *(_WITH_NUMBERS if script == "pages/overview.js" else ())]
    while pending:
        if (name := pending.pop()) not in names:
            names[name] = None
            source = site[name][0]
            pending += [normpath(f"{name}/../{match.decode()}") for match in _IMPORT.findall(source)]
    return list(names)


class Site(NamedTuple):
    """The scripts, the icon and the one stylesheet by name, and the page templates.

    `version` is a hash of all files and part of their URLs. So browsers may cache a file, modules import each other by
    relative names, and no page mixes files of two versions.
    """

    files: dict[str, SiteFile]
    version: str
    templates: Environment


def read_site() -> Site:
    own = files("appliance.web")
    site_files = dict(_site_files(own / "static"))
    others = sorted(name for name in site_files if name.endswith(".css") and name not in _FIRST_STYLES)
    styles = b"".join(site_files.pop(name)[0] for name in (*_FIRST_STYLES, *others))
    site_files[STYLES] = styles, CONTENT_TYPES["css"], etag_of(styles)
    names = "".join(f"{name} {site_files[name][2]}\n" for name in sorted(site_files))
    version = hashlib.sha256(names.encode()).hexdigest()[:12]
    loader = FunctionLoader(lambda name: (own / "templates" / name).read_text(encoding="utf-8"))
    return Site(site_files, version, Environment(loader=loader, autoescape=True, undefined=StrictUndefined))


def blueprint(read: Site, *, sandbox: bool, inbox: bool = False) -> Blueprint:
    """The routes. In the sandbox, every page says that no mail leaves the server. `inbox` is for `appliance dev`."""
    routes = Blueprint("pages", __name__)
    site, current, templates = read
    preview = templates.get_template("preview.html").render()
    sections, pages = (INBOX_SECTIONS, INBOX_PAGES) if inbox else (DASHBOARD_SECTIONS, DASHBOARD_PAGES)
    notice = INBOX_NOTICE if inbox else SANDBOX_NOTICE if sandbox else ""
    home = f"{DASHBOARD_ROOT}/inbox" if inbox else DASHBOARD_ROOT

    def frame(section: str, title: str, script: str = "") -> str:
        shown: dict[str, object] = {"modules": _modules(site, f"pages/{script}.js") if script else ()}
        shown |= {"static": f"/static/{current}", "sections": sections, "section": section, "title": title}
        shown["pages"] = msgspec.json.encode(pages).decode()
        shown["icon_image"] = f"data:image/svg+xml,{quote(site['icon.svg'][0])}"  # a request less before the page shows
        return templates.get_template("frame.html").render(shown, notice=notice)

    frames = {
        (name, is_item): frame(page.section, page.title, page.item if is_item else name or page.section)
        for name, page in pages.items()
        for is_item in (False, True)
    }
    lost = frame("", "Page not found")

    @routes.get("/")
    async def root() -> Response:
        return Response(b"", 302, {"Location": home})

    @routes.get(DASHBOARD_ROOT)
    async def overview() -> Response:
        return _page(frames["", False], PAGE_POLICY)

    @routes.get(f"{DASHBOARD_ROOT}/preview")
    async def empty() -> Response:
        return _page(preview, PREVIEW_POLICY)

    @routes.get(f"{DASHBOARD_ROOT}/preview/images")
    async def empty_with_images() -> Response:
        return _page(preview, IMAGES_POLICY)

    # Routes see paths without trailing slashes (see edge.py), but a page's scripts read the browser's own path.
    @routes.before_app_request
    async def without_slash() -> Response | None:
        path = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
        if not (path.startswith(f"{DASHBOARD_ROOT}/") and path.endswith("/")):
            return None
        query = request.query_string.decode("latin-1")
        return Response(b"", 302, {"Location": path.rstrip("/") + (f"?{query}" if query else "")})

    @routes.get(f"{DASHBOARD_ROOT}/<name>")
    @routes.get(f"{DASHBOARD_ROOT}/<name>/<path:below>")
    async def page(name: str, below: str = "") -> Response:
        parts = below.split("/") if below else []
        if name in pages and len(parts) <= pages[name].depth:
            return _page(frames[name, bool(parts)], PAGE_POLICY)
        return _page(lost, PAGE_POLICY, 404)

    @routes.get("/static/<version>/<path:name>")
    async def file(version: str, name: str) -> Response:
        if name not in site:
            raise Refused(Code.NOT_FOUND, "No file has this name.")
        return _kept(*site[name], CACHE_A_YEAR if version == current else REVALIDATE)

    @routes.get(LIST_PATH)
    async def list_of_documents() -> Response:
        return _kept(document_list(), _PLAIN, etag_of(document_list()), REVALIDATE)

    @routes.get(f"{DOCUMENTS_PATH}/<path:name>")
    async def document(name: str) -> Response:
        if (body := documents().get(name)) is None:
            raise Refused(Code.NOT_FOUND, f"No document has this name. See {LIST_PATH} for the list.")
        return _kept(body, _MARKDOWN, etag_of(body), REVALIDATE)

    return routes


@lru_cache(maxsize=256)
def _gzipped(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def _page(text: str, policy: str, status: int = 200) -> Response:
    response = _kept(text.encode(), "text/html; charset=utf-8", etag_of(text.encode()), REVALIDATE, status)
    response.headers["Content-Security-Policy"] = policy
    return response


def _kept(body: bytes, content_type: str, etag: str, keeping: str, status: int = 200) -> Response:
    """A response that browsers may cache; 304 if the browser has it."""
    compressed = may_compress()
    if compressed:
        body, etag = _gzipped(body), f"{etag}-gzip"
    response = Response(body, status, content_type=content_type)
    if etag in request.if_none_match:
        not_modified(response)
    response.set_etag(etag)
    response.headers["Cache-Control"] = keeping
    response.headers["Vary"] = "Accept-Encoding"
    if compressed:
        response.headers["Content-Encoding"] = "gzip"
    return response


# ---- links without a login

# Per client network. A mailbox provider sends the POSTs of all its users from few networks.
REQUESTS_PER_SECOND: Final = 50


def _network_rate(services: ApiServices) -> RequestRate:
    refusal, nodes = "Too many requests from your network. Retry in a few seconds.", services.store.engine.live_nodes
    return RequestRate(REQUESTS_PER_SECOND, services.env, refusal=refusal, nodes=nodes)


# ---- unsubscribe links

UNSUBSCRIBE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_FORGED = "This link is not valid."
_TRY_AGAIN = "Your mail program may have cut the link. Open it again from the message, or reply and ask to be removed."

View = Callable[[str], Awaitable[Response]]


class UnsubscribedAnswer(msgspec.Struct):
    """The response to a client other than a browser."""

    unsubscribed: bool
    request_id: str


def unsubscribe_blueprint(site: Site, services: ApiServices) -> Blueprint:
    """The pages of one-click unsubscribe links, `/unsubscribe/TOKEN`, for recipients without a login.

    GET and HEAD change nothing, because scanners open every link: they show a page with one button. A POST
    unsubscribes, whatever its body (RFC 8058 3.2). Browsers get an HTML page without scripts, other clients JSON.
    """
    routes = Blueprint("unsubscribe", __name__)
    links, store, rate = services.intake.links, services.store, _network_rate(services)
    template = site.templates.get_template("unsubscribe.html")
    policy = {"Content-Security-Policy": UNSUBSCRIBE_POLICY}

    def page(title: str, text: str, unsubscription: Unsubscription | None = None, *, asks: bool = False) -> Response:
        kind = "" if unsubscription is None else unsubscription.mail_list.partition(":")[2]
        shown = {"static": f"/static/{site.version}", "title": title, "text": text}
        body = template.render(shown, unsubscription=unsubscription, kind=kind, asks=asks)
        return Response(body, content_type="text/html; charset=utf-8", headers=policy)

    def with_pages(view: View) -> View:
        @wraps(view)
        async def shown(token: str) -> Response:
            try:
                return await view(token)
            except PublicError as refused:
                response = await refusal(refused)
                if not _takes_html():
                    return response
                forged = refused.code is Code.NOT_FOUND
                error_page = page(*((_FORGED, _TRY_AGAIN) if forged else ("Unsubscribe failed", refused.text)))
                error_page.status_code = response.status_code
                if "Retry-After" in response.headers:
                    error_page.headers["Retry-After"] = response.headers["Retry-After"]
                return error_page

        return shown

    def read(token: str) -> Unsubscription:
        if (unsubscription := links.read(token)) is None:
            raise Refused(Code.NOT_FOUND, _FORGED)
        return unsubscription

    @routes.get(f"{UNSUBSCRIBE_PATH}/<token>")
    @with_pages
    async def ask(token: str) -> Response:
        return page("Unsubscribe", "You will still receive other kinds of messages.", read(token), asks=True)

    @routes.post(f"{UNSUBSCRIBE_PATH}/<token>")
    @with_pages
    async def unsubscribe(token: str) -> Response:
        rate.take(client_network(client_address()))
        try:
            unsubscription = read(token)
        except Refused:
            UNSUBSCRIBES.add("refused")
            raise
        services.intake.check_disk()
        row = unsubscription.account_id, unsubscription.mail_list, unsubscription.address
        is_new = await store.unsubscriptions.add(*row)
        UNSUBSCRIBES.add("recorded" if is_new else "repeated")
        if _takes_html():
            return page("Unsubscribed", "Messages already on their way may still arrive.", unsubscription)
        return answer(UnsubscribedAnswer(True, request_id()))

    return routes


def _takes_html() -> bool:
    return "text/html" in request.headers.get("Accept", "").lower()


# ---- links to received mail


def received_blueprint(services: ApiServices) -> Blueprint:
    """The links to received messages and their files, `/inbound/TOKEN`, without a login."""
    routes = Blueprint("received_files", __name__)
    store, rate = services.store, _network_rate(services)

    @routes.get(f"{RECEIVED_PATH}/<token>")
    async def received_file(token: str) -> Response:
        rate.take(client_network(client_address()))
        linked = services.received_links.read(token, services.env.now())
        if linked is None:
            raise Refused(Code.NOT_FOUND, "This link is not valid, or has expired. Links are valid for an hour.")
        message = await store.received.find(linked.account_id, linked.message_id)
        if message is None:
            raise Refused(Code.NOT_FOUND, "This message is no longer stored.")
        load = partial(store.received.mime, linked.account_id, linked.message_id)
        whose = linked.account_id, linked.message_id, message.size
        if linked.number == RAW:
            return await services.bodies.answer(*whose, bytes, RAW_MESSAGE, f"{linked.message_id}.eml", load=load)
        # Always a download: a stranger chose its type and name.
        read, name = partial(encoded_attachment, linked.number - 1), f"{linked.message_id}-{linked.number}"
        return await services.bodies.answer(*whose, read, OCTETS, name, load=load)

    return routes
