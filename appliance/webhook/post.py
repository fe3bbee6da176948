"""Posts one event to a receiver over HTTPS, within five seconds in all; every failure is in the result.

Each attempt applies the URL policy, looks the name up and checks every address again. The name is in SNI and Host. No
redirect is followed. A connection that may carry another request is kept for the next event.
"""

import ssl
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache

import trio

from appliance.dns.resolver import Resolver
from appliance.net.address_policy import Address, Network
from appliance.net.dial import Dial, Shortage
from appliance.webhook.connect import (
    FIRST_ADDRESS,
    AddressLookup,
    NoAddress,
    NotPosted,
    ReceiverConnection,
    dial_receiver,
    start_tls,
)
from appliance.webhook.connection_pool import IDLE_SECONDS, IdleConnections
from appliance.webhook.http import ConnectionLost, PostAttempt, Step, exchange, request_bytes
from appliance.webhook.url_policy import Target, UrlRefused, read_url

POST_TIMEOUT = 5.0  # seconds for all of an attempt, by the interface
URLS_CACHED = 1_000


@dataclass(frozen=True, slots=True)
class Posted:
    """The result of one attempt to post."""

    status: int | None
    body: bytes  # the first 2 KiB of the answer's
    error: str | None  # what went wrong; None when a whole answer came
    duration_ms: int
    overlong: bool = False  # the error is only that the answer was too long to be read to its end

    @property
    def accepted(self) -> bool:
        """Whether the receiver took the event: any 2xx, by the interface, however long its answer is."""
        return self.status is not None and 200 <= self.status < 300 and (self.error is None or self.overlong)


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
            return None
        return None

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        """Post once. A cancellation closes the connection.

        Raises `Shortage` when this machine lacks what a connection needs, and closes the idle connections then.
        """
        attempt, began = PostAttempt(), trio.current_time()
        with trio.move_on_after(self._timeout) as limit:
            try:
                target = self._read(url)
                await self._post(attempt, target, request_bytes(target, headers, body))
            except (UrlRefused, NotPosted) as fault:
                attempt.error = str(fault)
            except Shortage:
                await self.idle.drop_all()
                raise
        if limit.cancelled_caught:
            attempt.error = f"{attempt.awaiting} within {self._timeout:g} s"
        duration = round((trio.current_time() - began) * 1000)
        return Posted(attempt.status, attempt.body, attempt.error, duration, attempt.overlong)

    async def _post(self, attempt: PostAttempt, target: Target, request: bytes) -> None:
        addresses = await self._lookup.addresses(target)
        connection = await self.idle.take(target.host, target.port, addresses)
        if connection is not None:
            try:
                await self._exchange(attempt, connection, request)
            except ConnectionLost:  # closed while idle; a receiver that took the event all the same sees its id twice
                await self.idle.drop_all_to(connection.endpoint)
            else:
                return
        connection = await self._connect(attempt, target, addresses)
        await self._exchange(attempt, connection, request)

    async def _connect(
        self, attempt: PostAttempt, target: Target, addresses: tuple[Address, ...]
    ) -> ReceiverConnection:
        attempt.awaiting = Step.CONNECTED
        endpoint, stream = await dial_receiver(self._dial, target, addresses, first_address=self._first_address)
        attempt.awaiting = Step.SECURED
        return await start_tls(self._context, endpoint, stream)

    async def _exchange(self, attempt: PostAttempt, connection: ReceiverConnection, request: bytes) -> None:
        keep = False
        try:
            keep = await exchange(attempt, connection, request)
        finally:
            if not keep:
                await connection.aclose()
        if keep:
            await self.idle.give_back(connection)
