"""Posts one event to a receiver over HTTPS, within five seconds in all; every failure is in the result.

Each attempt applies the URL policy, looks the name up and checks every address again. The name is in SNI and Host. No
redirect is followed. A connection that may carry another request is kept for the next event.
"""

import ssl
from collections.abc import Container, Sequence
from functools import lru_cache

import trio

from appliance.dns.resolver import Resolver
from appliance.net.address_policy import Address, Network
from appliance.net.dial import Dial, Shortage, dial_first
from appliance.webhook.connect import AddressLookup, NoAddress, NotPosted, ReceiverConnection, start_tls
from appliance.webhook.connection_pool import IDLE_SECONDS, IdleConnections
from appliance.webhook.http import ConnectionLost, Posted, Step, exchange, request_bytes
from appliance.webhook.url_policy import Target, UrlRefused, read_url

POST_TIMEOUT = 5.0  # seconds for all of an attempt, by the interface
ADDRESSES_TRIED = 2
FIRST_ADDRESS = 2.0  # seconds until the second is tried instead: an unreachable IPv6 address mostly does not answer
URLS_CACHED = 1_000


class Poster:
    """Posts events. One for the process, since it keeps the idle connections."""

    def __init__(
        self,
        resolver: Resolver,
        dial: Dial,
        context: ssl.SSLContext,
        *,
        ports: Container[int],
        own_names: Container[str] = frozenset(),
        allowed: tuple[Network, ...] = (),
        own: Container[Address] = frozenset(),
        timeout: float = POST_TIMEOUT,
        first_address: float = FIRST_ADDRESS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._dial = dial
        self._context = context
        self._timeout = timeout
        self._first_address = first_address
        self._lookup = AddressLookup(resolver, allowed, own)
        self.idle = IdleConnections(idle_seconds)
        # The policy depends on the URL's text and the settings only, so its verdict can be cached.
        self._read = lru_cache(URLS_CACHED)(lambda url: read_url(url, ports, own_names, allowed))

    async def check(self, url: str) -> str | None:
        """Why this URL may not be saved; None when it may.

        A lookup that fails for the moment refuses nothing: every attempt looks the name up again, and customers must
        be able to save their settings during an outage of the DNS.
        """
        try:
            target = self._read(url)
            with trio.move_on_after(self._timeout):
                await self._lookup.addresses(target)
        except UrlRefused as refused:
            return str(refused)
        except NoAddress as missing:
            return None if missing.temporary else str(missing)
        except Shortage:
            pass
        return None

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        """Post once. A cancellation closes the connection.

        Raises `Shortage` when this machine lacks what a connection needs, and closes the idle connections then.
        """
        posted, began = Posted(), trio.current_time()
        with trio.move_on_after(self._timeout) as limit:
            try:
                target = self._read(url)
                await self._post(posted, target, request_bytes(target, headers, body))
            except (UrlRefused, NotPosted) as fault:
                posted.error = str(fault)
            except Shortage:
                await self.idle.drop_all()
                raise
        if limit.cancelled_caught:
            posted.error = f"{posted.awaiting} within {self._timeout:g} s"
        posted.duration_ms = round((trio.current_time() - began) * 1000)
        return posted

    async def _post(self, posted: Posted, target: Target, request: bytes) -> None:
        addresses = await self._lookup.addresses(target)
        if connection := await self.idle.take(target.host, target.port, addresses):
            try:
                return await self._exchange(posted, connection, request)
            except ConnectionLost:  # closed while idle; a receiver that took the event all the same sees its id twice
                await self.idle.drop_all_to(connection.endpoint)
        posted.awaiting = Step.CONNECTED
        tried, port = addresses[:ADDRESSES_TRIED], target.port
        try:
            address, stream = await dial_first(self._dial, tried, port, patience=self._first_address)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotPosted(f"the receiver did not accept a connection to port {port}: {reason}") from error
        posted.awaiting = Step.SECURED
        connection = await start_tls(self._context, target, address, stream)
        return await self._exchange(posted, connection, request)

    async def _exchange(self, posted: Posted, connection: ReceiverConnection, request: bytes) -> None:
        keep = False
        try:
            keep = await exchange(posted, connection, request)
        finally:
            if not keep:
                await connection.aclose()
        if keep:
            await self.idle.give_back(connection)
