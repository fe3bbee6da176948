"""The pages of one-click unsubscribe links, `/unsubscribe/TOKEN`, for recipients without a login.

GET and HEAD change nothing, because scanners open every link: they show a page with one button. A POST unsubscribes,
whatever its body (RFC 8058 3.2). Browsers get an HTML page without scripts, other clients JSON.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final

import msgspec
from quart import Blueprint, Response, request

from appliance.errors import Code, PublicError, Refused
from appliance.feedback.return_path import UNSUBSCRIBE_PATH, Unsubscription
from appliance.intake.limits import RequestRate
from appliance.net.address_policy import client_network
from appliance.telemetry.metrics import UNSUBSCRIBES
from appliance.web.app import ApiServices, answer, client_address, refusal, request_id
from appliance.web.pages import Site

# Per client network. A mailbox provider sends the POSTs of all its users from few networks.
UNSUBSCRIBES_PER_SECOND: Final = 50
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


def blueprint(site: Site, services: ApiServices) -> Blueprint:
    routes = Blueprint("unsubscribe", __name__)
    links, store = services.intake.links, services.store
    rate = RequestRate(
        UNSUBSCRIBES_PER_SECOND,
        services.env,
        refusal="Too many requests from your network. Retry in a few seconds.",
        nodes=store.engine.live_nodes,
    )
    template = site.templates.get_template("unsubscribe.html")

    def page(title: str, text: str, unsubscription: Unsubscription | None = None, *, asks: bool = False) -> Response:
        kind = "" if unsubscription is None else unsubscription.mail_list.partition(":")[2]
        shown = {"static": f"/static/{site.version}", "title": title, "text": text}
        body = template.render(shown, unsubscription=unsubscription, kind=kind, asks=asks)
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
        is_new = await store.unsubscriptions.add(
            unsubscription.account_id, unsubscription.mail_list, unsubscription.address
        )
        UNSUBSCRIBES.add("recorded" if is_new else "repeated")
        if _takes_html():
            return page("Unsubscribed", "Messages already on their way may still arrive.", unsubscription)
        return answer(UnsubscribedAnswer(True, request_id()))

    return routes


_POLICY = {"Content-Security-Policy": UNSUBSCRIBE_POLICY}


def _takes_html() -> bool:
    return "text/html" in request.headers.get("Accept", "").lower()
