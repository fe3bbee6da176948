"""In charge of posting an event to a receiver over HTTPS: whom to dial, for how long, and what came of it.

An attempt looks at everything again: the URL by its rules, its name in the DNS, each address behind it. The address
that was checked is the one dialled, with the name in SNI and Host. No redirect is followed.
"""

import ssl
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache

import trio

from appliance.dns.resolver import Resolver
from appliance.net.address_policy import Address, Network
from appliance.net.dial import Dial
from appliance.system.shortage import Shortage
from appliance.webhook.address_check import Lookup, NotFound
from appliance.webhook.attempt import Attempt, NotPosted
from appliance.webhook.connect import connect
from appliance.webhook.connection_pool import Connection, KeptConnections, Place
from appliance.webhook.exchange import Lost, exchange
from appliance.webhook.request import request_bytes
from appliance.webhook.url_policy import Target, UrlRefused, read_url

POST_TIMEOUT = 5.0  # seconds for all of an attempt, by the interface
URLS_READ = 1_000  # whose reading is remembered
SWEEP_EVERY = 5.0  # seconds between looks at the idle connections


@dataclass(frozen=True, slots=True)
class Posted:
    """What came of a post."""

    status: int | None
    body: bytes  # the first 2 KiB of the answer's
    error: str | None  # what went wrong, in plain words; None when a whole answer came
    duration_ms: int
    overlong: bool = False  # nothing went wrong but that the answer was too long to be read to its end

    @property
    def accepted(self) -> bool:
        """Whether the receiver took the event: any 2xx, by the interface, however much it has to say besides."""
        return self.status is not None and 200 <= self.status < 300 and (self.error is None or self.overlong)


class Poster:
    """Posts events. One for the process: it keeps the connections."""

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
    ) -> None:
        self._dial = dial
        self._context = context
        self._timeout = timeout
        self._lookup = Lookup(resolver, allowed, own)
        self._kept = KeptConnections()
        self._swept = 0.0
        # A URL is judged by its text and the settings alone, so the verdict on a text stays the same.
        self._read = lru_cache(URLS_READ)(lambda url: read_url(url, ports, own_names, allowed))

    async def check(self, url: str) -> str | None:
        """Why this URL may not be saved, in words; None when it may.

        So it may while its name cannot be looked up: every attempt looks again, and an outage of the DNS should not
        keep anybody from their settings.
        """
        try:
            target = self._read(url)
            with trio.move_on_after(self._timeout):
                await self._lookup.addresses(target)
        except UrlRefused as refused:
            return str(refused)
        except NotFound as missing:
            return None if missing.temporary else str(missing)
        except Shortage:
            return None
        return None

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        """Post once; whatever goes wrong is in the result. A cancellation closes the connection.

        Raises `Shortage` when this machine lacks what it takes to reach anybody, and gives up the kept connections.
        """
        attempt, begun = Attempt(), trio.current_time()
        with trio.move_on_after(self._timeout) as limit:
            try:
                target = self._read(url)
                await self._post(attempt, target, request_bytes(target, headers, body))
            except (UrlRefused, NotPosted) as fault:
                attempt.error = str(fault)
            except Shortage:
                await self._kept.drop_all()
                raise
        if limit.cancelled_caught:
            attempt.error = f"{attempt.awaiting} within {self._timeout:g} s"
        duration = round((trio.current_time() - begun) * 1000)
        return Posted(attempt.status, attempt.body, attempt.error, duration, attempt.overlong)

    async def close_idle(self) -> None:
        """Close the connections that have not been used for a while; posting does so, too, every few seconds."""
        await self._kept.close_idle()

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        await self._kept.aclose()

    async def _post(self, attempt: Attempt, target: Target, request: bytes) -> None:
        addresses = await self._lookup.addresses(target)
        await self._sweep()
        connection = await self._take(target, addresses)
        if connection is not None:
            try:
                await self._exchange(attempt, connection, request)
            except Lost:  # the receiver had given it up; that it took the event all the same is for it to notice
                await self._kept.drop_all_to(connection.place)
            else:
                return
        connection = await connect(attempt, self._dial, self._context, target, addresses)
        await self._exchange(attempt, connection, request)

    async def _take(self, target: Target, addresses: tuple[Address, ...]) -> Connection | None:
        for address in addresses:
            if connection := await self._kept.take(Place(target.host, target.port, address)):
                return connection
        return None

    async def _exchange(self, attempt: Attempt, connection: Connection, request: bytes) -> None:
        """One request and its answer; the connection is kept if it may carry another."""
        keep = False
        try:
            keep = await exchange(attempt, connection, request)
        finally:
            if not keep:
                await connection.aclose()
        if keep:
            await self._kept.give_back(connection)

    async def _sweep(self) -> None:
        now = trio.current_time()
        if now >= self._swept + SWEEP_EVERY:
            self._swept = now
            await self._kept.close_idle()
