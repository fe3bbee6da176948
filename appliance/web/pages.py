"""In charge of the dashboard in the browser: its one frame, the empty page that previews are put into, and its files.

The frame is the same for everybody: what belongs to an account comes from /v1, asked for by the frame's own scripts.
"""

from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from quart import Blueprint, Response, request

from appliance.web.answer import CONTENT_SECURITY_POLICY
from appliance.web.site_files import SiteFiles, etag_of, read_site_files

ROOT = "/dashboard"
KEEP = "public, max-age=31536000, immutable"  # a year: the address changes with the content
ASK = "no-cache"  # keep it, and ask each time whether it is still the same

PAGE_POLICY = f"{CONTENT_SECURITY_POLICY.decode()}; frame-src 'self'"
# Mail is put into this page by the dashboard's scripts. Nothing in it may run, load or be sent anywhere; its own style
# is all that it may have.
PREVIEW_POLICY = (
    "sandbox allow-same-origin; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the dashboard, as it stands in the rail; `key` goes there after a `g`."""

    name: str
    path: str
    title: str
    key: str


SECTIONS = (
    Section("overview", ROOT, "Overview", "o"),
    Section("messages", f"{ROOT}/messages", "Messages", "m"),
    Section("domains", f"{ROOT}/domains", "Domains", "d"),
    Section("templates", f"{ROOT}/templates", "Templates", "t"),
    Section("webhook", f"{ROOT}/webhook", "Webhook", "w"),
    Section("suppressions", f"{ROOT}/suppressions", "Suppressions", "s"),
    Section("keys", f"{ROOT}/keys", "Keys & credentials", "k"),
    Section("account", f"{ROOT}/account", "Account", "a"),
    Section("admin", f"{ROOT}/admin", "Admin", "q"),
)
# Below these paths there are pages of single things.
WITH_PAGES_BELOW = frozenset({"messages", "domains", "templates"})
LOGIN = "login"


def blueprint() -> Blueprint:
    """The routes."""
    routes = Blueprint("pages", __name__)
    site = read_site_files()
    templates = Environment(loader=FunctionLoader(_template), autoescape=True, undefined=StrictUndefined)
    preview = templates.get_template("preview.html").render()

    def frame(section: str, title: str) -> str:
        shown = {"static": f"/static/{site.version}", "sections": SECTIONS, "section": section, "title": title}
        return templates.get_template("frame.html").render(shown)

    frames = {section.name: frame(section.name, section.title) for section in SECTIONS}
    login, lost = frame(LOGIN, "Log in"), frame("", "Nothing here")

    @routes.get("/")
    async def root() -> Response:
        return Response(b"", 302, {"Location": ROOT})

    @routes.get(ROOT)
    async def overview() -> Response:
        return _page(frames["overview"], PAGE_POLICY)

    @routes.get(f"{ROOT}/preview")
    async def empty() -> Response:
        return _page(preview, PREVIEW_POLICY)

    @routes.get(f"{ROOT}/<name>")
    @routes.get(f"{ROOT}/<name>/<path:below>")
    async def page(name: str, below: str = "") -> Response:
        if name == LOGIN and not below:
            return _page(login, PAGE_POLICY)
        if name in frames and name != "overview" and (not below or name in WITH_PAGES_BELOW):
            return _page(frames[name], PAGE_POLICY)
        return _page(lost, PAGE_POLICY, 404)

    @routes.get("/static/<version>/<path:name>")
    async def file(version: str, name: str) -> Response:
        return _file(site, version, name)

    return routes


def _template(name: str) -> str:
    return (files("appliance.web") / "templates" / name).read_text(encoding="utf-8")


def _page(text: str, policy: str, status: int = 200) -> Response:
    response = _kept(text.encode(), "text/html; charset=utf-8", etag_of(text.encode()), ASK, status)
    response.headers["Content-Security-Policy"] = policy
    return response


def _file(site: SiteFiles, version: str, name: str) -> Response:
    found = site.files.get(name)
    if found is None:
        return Response("There is no such file.", 404, content_type="text/plain; charset=utf-8")
    return _kept(found.body, found.content_type, found.etag, KEEP if version == site.version else ASK, 200)


def _kept(body: bytes, content_type: str, etag: str, keeping: str, status: int) -> Response:
    """An answer that a browser may keep; an empty one if it has kept it already."""
    same = etag in request.if_none_match
    response = Response(b"" if same else body, 304 if same else status, content_type=content_type)
    response.set_etag(etag)
    response.headers["Cache-Control"] = keeping
    return response
