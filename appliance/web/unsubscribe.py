"""What links of one-click unsubscribe lead to, `/unsubscribe/TOKEN`, for recipients of mail, who have no login.

GET and HEAD change nothing, since scanners open every link of a message: they show a page with one button. A POST
unsubscribes, whatever its body says (RFC 8058 3.2); the edge has read that already, within its limits. A client that
takes HTML is answered with a page, which has no script; any other with JSON, errors as the error object.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final

import msgspec
from quart import Blueprint, Response, request

from appliance.errors import Code, PublicError, Refused
from appliance.feedback.unsubscribe import UNSUBSCRIBE_PATH, Unsubscription
from appliance.intake.limits import RequestRate
from appliance.net.address_policy import client_network
from appliance.telemetry.metrics import UNSUBSCRIBES
from appliance.web.app import ApiServices, answer, client_address, refusal, request_id
from appliance.web.pages import Site

# For each client network; the POSTs for all readers of a mailbox provider come from few.
UNSUBSCRIBES_PER_SECOND: Final = 50
UNSUBSCRIBE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_FORGED = "This link is not valid."
_TRY_AGAIN = (
    "A mail program may have cut it: open it in the message once more, or answer the message and ask to be removed."
)

View = Callable[[str], Awaitable[Response]]


class UnsubscribedAnswer(msgspec.Struct):
    """The answer to a POST that was not sent by a browser."""

    unsubscribed: bool
    request_id: str


def blueprint(site: Site, services: ApiServices) -> Blueprint:
    routes = Blueprint("unsubscribe", __name__)
    links, store = services.intake.links, services.store
    rate = RequestRate(
        UNSUBSCRIBES_PER_SECOND,
        services.env,
        refusal="From your network come too many of these requests. Retry in a moment.",
        nodes=store.engine.live_nodes,
    )
    template = site.templates.get_template("unsubscribe.html")

    def page(title: str, text: str, wanted: Unsubscription | None = None, *, asks: bool = False) -> Response:
        kind = "" if wanted is None else wanted.mail_list.partition(":")[2]
        shown = {"static": f"/static/{site.version}", "title": title, "text": text}
        body = template.render(shown, wanted=wanted, kind=kind, asks=asks)
        return Response(body, content_type="text/html; charset=utf-8", headers=_POLICY)

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
                told = page(*((_FORGED, _TRY_AGAIN) if forged else ("This did not work", refused.text)))
                told.status_code = response.status_code
                if "Retry-After" in response.headers:
                    told.headers["Retry-After"] = response.headers["Retry-After"]
                return told

        return shown

    def read(token: str) -> Unsubscription:
        if (wanted := links.read(token)) is None:
            raise Refused(Code.NOT_FOUND, _FORGED)
        return wanted

    @routes.get(f"{UNSUBSCRIBE_PATH}/<token>")
    @with_pages
    async def ask(token: str) -> Response:
        return page("Unsubscribe", "Messages of other kinds go on.", read(token), asks=True)

    @routes.post(f"{UNSUBSCRIBE_PATH}/<token>")
    @with_pages
    async def unsubscribe(token: str) -> Response:
        rate.take(client_network(client_address()))
        try:
            wanted = read(token)
        except Refused:
            UNSUBSCRIBES.add("refused")
            raise
        services.intake.check_disk()
        is_new = await store.unsubscriptions.add(wanted.account_id, wanted.mail_list, wanted.address)
        UNSUBSCRIBES.add("recorded" if is_new else "repeated")
        if _takes_html():
            return page("Unsubscribed", "A message that is on its way already may still arrive.", wanted)
        return answer(UnsubscribedAnswer(True, request_id()))

    return routes


_POLICY = {"Content-Security-Policy": UNSUBSCRIBE_POLICY}


def _takes_html() -> bool:
    return "text/html" in request.headers.get("Accept", "").lower()
