"""In charge of what a parcel needs before it can go: a route, and a signature.

What is known from the moment before is taken from memory, without a task of its own; so most parcels only pass through
the queue of those to be signed, where each trip to a thread takes several, and accounts take turns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.deliver.attempt import Courier, Parcel
from appliance.deliver.due_mail import Turns
from appliance.deliver.pending_counts import InHand
from appliance.deliver.pool_limiter import Gate
from appliance.deliver.pool_limiters import Gates
from appliance.deliver.route import NoRoute, Route
from appliance.deliver.route_cache import SharedRoutes
from appliance.deliver.signer import Signer, Unsigned
from appliance.deliver.warmups import Permit
from appliance.message.dkim import Algorithm, SigningKey
from appliance.model.mail import DueRecipient, Outcome
from appliance.outside import Outside
from appliance.store import Store
from appliance.system.shortage import SHORTAGE_PAUSE, Shortage

SIGNED_TOGETHER = 16  # messages in one trip to a thread: some fifty milliseconds of RSA signatures
KEPT_BYTES = 32 * 1024  # of a message that is kept in memory while it waits; a longer one is read again
KEPT_IN_ALL = 16 * 1024 * 1024  # bytes: kept is what would fit if all that are in hand were of its size
LARGE = 1024 * 1024  # bytes of a message that takes its time, and memory, on its way


class Routed(NamedTuple):
    """A parcel that can be taken somewhere, once it is signed."""

    parcel: Parcel
    route: Route
    gate: Gate
    keys: list[SigningKey]
    mime: bytes | None  # or else it is in the store
    since: float  # taken into hand, Trio's clock
    large: bool  # so that few of its like may be under way at once

    def of(self, recipients: tuple[DueRecipient, ...]) -> "Routed":
        """The same for some of its recipients."""
        return self._replace(parcel=self.parcel._replace(recipients=recipients))


class Ready(NamedTuple):
    """A parcel that can go, with leave to do so where its source is being warmed up."""

    routed: Routed
    signature: bytes
    permit: Permit | None = None


@dataclass(slots=True)
class Preparing:
    """Parcels on their way from the queue to a slot; `on_ready` and `on_failed` get what comes of each."""

    store: Store
    outside: Outside
    routes: SharedRoutes
    gates: Gates
    signer: Signer
    courier: Courier
    in_hand: InHand
    on_ready: Callable[[Ready], None]
    on_failed: Callable[[Parcel, list[Outcome]], None]
    on_short: Callable[[Shortage], None]  # told when this machine lacks what looking up a route takes
    _unsigned: Turns[Routed] = field(default_factory=Turns)
    _being_signed: set[str] = field(default_factory=set)  # messages
    _idle_signers: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def take(self, parcel: Parcel, mime: bytes | None, nursery: trio.Nursery) -> None:
        """Take a parcel into hand; `mime` is its message, if that is at hand."""
        pool = self.gates.pool_of(parcel.domain)
        self.in_hand.add(pool, parcel.account_id)
        route = self.routes.known(parcel.domain)
        keys = self.signer.known_keys(parcel.account_id, parcel.sender_domain)
        if route is None or keys is None:
            nursery.start_soon(self._find_way, parcel, pool, self._worth_keeping(mime))
        else:
            self._sign_if_needed(parcel, pool, route, keys, mime, trio.current_time())

    # ---- the way

    async def _find_way(self, parcel: Parcel, pool: str, mime: bytes | None) -> None:
        """Ask for the way to a domain, and for the keys to sign with."""
        started_at, since = self.outside.now(), trio.current_time()
        try:
            route = await self._route(parcel.domain)
            keys = await self.signer.find_keys(parcel.account_id, parcel.sender_domain)
        except NoRoute as reason:
            self.in_hand.remove(pool, parcel.account_id)
            self.on_failed(parcel, self.courier.no_route(parcel, reason, started_at))
        except Exception as error:
            self._fail(parcel, pool, error)
        else:
            self._sign_if_needed(parcel, pool, route, keys, mime, since)

    async def _route(self, domain: str) -> Route:
        """The way to a domain, asked for until this machine has what it takes to ask."""
        while True:
            try:
                return await self.routes.find(domain)
            except Shortage as shortage:
                self.on_short(shortage)
                await trio.sleep(SHORTAGE_PAUSE)

    def _fail(self, parcel: Parcel, pool: str, error: Exception) -> None:
        self.in_hand.remove(pool, parcel.account_id)
        self.on_failed(parcel, self.courier.failed(parcel, error))

    # ---- the signature

    def _sign_if_needed(
        self, parcel: Parcel, pool: str, route: Route, keys: list[SigningKey], mime: bytes | None, since: float
    ) -> None:
        gate = self.gates.of_route(route)
        self.in_hand.move(pool, gate.pool, parcel.account_id)
        signature = self.signer.made(parcel.message_id)
        size = len(mime or b"")
        try:
            if mime is None:
                mime, stored, size = self.store.messages.to_send(parcel.message_id)
                signature = stored or signature
        except Exception as error:
            self._fail(parcel, gate.pool, error)
            return
        routed = Routed(parcel, route, gate, keys, self._worth_keeping(mime), since, size > LARGE)
        if signature is not None:
            self.on_ready(Ready(routed, signature))
        else:
            self._unsigned.add(parcel.account_id, routed)
            self._wake_a_signer(routed)

    def _worth_keeping(self, mime: bytes | None) -> bytes | None:
        """A message, or None when it had better be read again: what waits must not fill the memory."""
        if not mime or len(mime) > KEPT_BYTES or len(mime) * self.in_hand.total > KEPT_IN_ALL:
            return None
        return mime

    async def sign(self) -> None:
        """Sign what is to be signed, for ever; to be run once for each thread of the signer's."""
        while True:
            if not (batch := self._next_unsigned()):
                await self._idle_signers.park()
                continue
            if self._unsigned:
                self._wake_a_signer(self._unsigned.peek())
            signatures = await self._signatures(batch)
            for routed, signature in zip(batch, signatures, strict=True):
                self._being_signed.discard(routed.parcel.message_id)
                if isinstance(signature, bytes):
                    self.on_ready(Ready(routed, signature))
                else:
                    self._fail(routed.parcel, routed.gate.pool, signature)

    async def _signatures(self, batch: list[Routed]) -> list[bytes | Exception]:
        """The signature of each, or why there is none."""
        unsigned, failed = [], {}
        for routed in batch:
            try:
                unsigned.append(Unsigned(routed.parcel.message_id, await self._read(routed), routed.keys))
            except Exception as error:
                failed[routed.parcel.message_id] = error
        made = iter(await self.signer.sign(unsigned))
        return [failed.get(routed.parcel.message_id) or next(made) for routed in batch]

    def _next_unsigned(self) -> list[Routed]:
        """This signer's share of the parcels whose message nobody is signing already; a large one is a share.

        So memory holds one large message for each signer.
        """
        share = self._share()
        batch: list[Routed] = []
        later: list[Routed] = []
        while self._unsigned and len(batch) < share and not (batch and batch[-1].large):
            routed = self._unsigned.next()
            message_id = routed.parcel.message_id
            if message_id in self._being_signed:
                later.append(routed)
            elif (signature := self.signer.made(message_id)) is not None:
                self.on_ready(Ready(routed, signature))
            else:
                self._being_signed.add(message_id)
                batch.append(routed)
        for routed in later:
            self._unsigned.add(routed.parcel.account_id, routed)
        return batch

    def _wake_a_signer(self, waiting: Routed) -> None:
        """Let another thread sign what waits, if that is worth a trip.

        An RSA signature is; one by Ed25519 takes less than the trip, and waits for the next of the thread under way.
        """
        none_busy = len(self._idle_signers) == self.signer.threads
        if none_busy or _slow(waiting):
            self._idle_signers.unpark()

    def _share(self) -> int:
        """How many one trip takes: of RSA signatures only as many as leave some for the other threads."""
        waiting = len(self._unsigned)
        if waiting and _slow(self._unsigned.peek()):
            waiting = -(-waiting // (1 + len(self._idle_signers)))
        return min(waiting, SIGNED_TOGETHER)

    async def _read(self, routed: Routed) -> bytes:
        if routed.mime is not None:
            return routed.mime
        message_id = routed.parcel.message_id
        return self.store.messages.to_send(message_id).mime or await self.store.messages.content(message_id)


def _slow(routed: Routed) -> bool:
    return any(key.algorithm is Algorithm.RSA for key in routed.keys)
