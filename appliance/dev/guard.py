"""Keeps web pages and other machines away from `appliance dev`, which has no login.

A page that the developer visits can send requests to this machine. So a request must name this machine in `Host`, which
stops pages whose name leads here (DNS rebinding), and must not come from a page of another origin.
"""

from msgspec import Struct

from appliance.dev.settings import is_loopback
from appliance.errors import Code
from appliance.web.edge import Edge
from appliance.web.exchange import Answer, AsgiExchange, AsgiScope, AsgiSend, Peer, Receive, error_answer
from appliance.web.http1 import QuickRequest

LOCAL_NAMES = frozenset((b"localhost", b"127.0.0.1", b"[::1]"))
OWN_PAGES = frozenset((b"same-origin", b"none"))  # `none`: the user typed the address


def foreign(method: str, path: str, headers: dict[bytes, bytes]) -> str | None:
    """Why a request is refused that another machine's name or a foreign web page caused; None: it may pass."""
    host = headers.get(b"host", b"").lower()
    if host.rpartition(b":")[0] not in LOCAL_NAMES and host not in LOCAL_NAMES:
        return "Host: this server answers only at localhost, 127.0.0.1 and [::1]."
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if origin is not None and origin != b"http://" + host:
        return "Origin: a web page of another origin may not use this server. Send the request from your server."
    if site is None or site in OWN_PAGES:
        return None
    is_link = method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate" and not path.startswith("/v1/")
    return None if is_link else "Sec-Fetch-Site: a web page of another origin may not use this server."


class Guard(Struct):
    """The edge, for requests from this machine only."""

    edge: Edge

    async def __call__(self, scope: AsgiScope, receive: Receive, send: AsgiSend) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            refusal = self._refusal(scope["peer"], scope["method"], scope["path"], headers)
            if refusal is not None:
                exchange = AsgiExchange(receive, send, scope, self.edge.services.env.identifier("req"))
                exchange.expects_body = True  # it stays unread, so the connection ends
                await exchange.send(error_answer(Code.FORBIDDEN, refusal, exchange.request_id))
                return
        await self.edge(scope, receive, send)

    async def send_whole(self, request: QuickRequest, peer: Peer, *, secure: bool) -> tuple[Answer, bool]:
        refusal = self._refusal(peer, "POST", request.path, request.headers)
        if refusal is not None:
            request_id = self.edge.services.env.identifier("req")
            return error_answer(Code.FORBIDDEN, refusal, request_id), False
        return await self.edge.send_whole(request, peer, secure=secure)

    def _refusal(self, peer: Peer, method: str, path: str, headers: dict[bytes, bytes]) -> str | None:
        if peer.address is None or not is_loopback(peer.address[0]):
            return "Only this machine may use this server."
        return foreign(method, path, headers)
