"""In charge of taking one message to one destination: find a server that answers, hand it over, say what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.deliver.connections import Connections, Place
from appliance.deliver.outcome import (
    DELIVERED,
    TEMPORARY,
    Fault,
    Judgement,
    Result,
    is_before_mail,
    judge,
    judge_no_route,
)
from appliance.deliver.outcome_record import Contact, Retries, outcome
from appliance.deliver.pool_limiter import Gate
from appliance.deliver.pool_limiters import Slot
from appliance.deliver.route import Host, NoRoute, Route
from appliance.deliver.slow_servers import SlowServers
from appliance.deliver.smtp.commands import Credentials
from appliance.deliver.smtp.connection import Connection
from appliance.deliver.smtp.payload import Payload, prepare
from appliance.deliver.smtp.progress import Progress
from appliance.deliver.smtp.results import Cause, Kind, NotOpened, RecipientResult, Stage, Verdict, lost
from appliance.deliver.smtp.sending import Transaction
from appliance.deliver.smtp.timeouts import Timeouts
from appliance.deliver.smtp.tls import TlsPlan
from appliance.deliver.smtp.watch import Watch
from appliance.deliver.tls_choice import TlsChoice
from appliance.deliver.tls_policy import Level
from appliance.deliver.warmups import Permit
from appliance.errors import Refused
from appliance.message.addresses import parse
from appliance.model.mail import DueRecipient, Outcome
from appliance.outside import Outside
from appliance.store import Store
from appliance.system.shortage import raise_if_short
from appliance.telemetry.log import get_logger

LARGE = 256 * 1024  # bytes of a message that is made ready off the event loop

log = get_logger("deliver")


class Parcel(NamedTuple):
    """One message for its recipients at one domain."""

    message_id: str
    account_id: str
    domain: str
    recipients: tuple[DueRecipient, ...]

    @property
    def sender_domain(self) -> str:
        """The domain of the message's From, whose keys sign it: DMARC looks there, not at the envelope's sender."""
        recipient = self.recipients[0]
        try:
            return parse(recipient.sender, "from").domain
        except Refused:  # nobody's From: whatever wrote it, the mail must go
            return recipient.envelope_from.rpartition("@")[2]


class _Reached(NamedTuple):
    """How far we came with one server, and what it said of each recipient."""

    results: tuple[RecipientResult, ...]
    contact: Contact
    final: bool  # no other server need be asked
    gate: Gate  # of that server


class _Trip(NamedTuple):
    """One message on its way to the servers of a route."""

    route: Route
    transaction: Transaction
    slot: Slot
    started_at: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Courier:
    """Delivers parcels."""

    store: Store
    outside: Outside
    connections: Connections
    tls: TlsChoice
    hello_name: str
    retries: Retries
    slow: SlowServers = field(default_factory=lambda: SlowServers(Timeouts()))
    watch: Watch = field(default_factory=Watch)
    preparing: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))  # large messages

    def no_route(self, parcel: Parcel, reason: NoRoute, started_at: int) -> list[Outcome]:
        """What it means for a parcel that there is nowhere to take it."""
        judgement, contact, now = judge_no_route(reason), Contact(started_at), self.outside.now()
        text = f"{reason.status} {reason.text}"
        return [
            outcome(recipient, judgement, None, text, contact, now, self.retries) for recipient in parcel.recipients
        ]

    def failed(self, parcel: Parcel, error: Exception) -> list[Outcome]:
        """A bug, or trouble of this machine: temporary, as every unknown error is."""
        log.exception("delivery failed", error, message_id=parcel.message_id, domain=parcel.domain)
        reason = NoRoute("4.3.0", "an error on our side; it is in the operator's log")
        return self.no_route(parcel, reason, self.outside.now())

    async def deliver(
        self,
        parcel: Parcel,
        route: Route,
        slot: Slot,
        signature: bytes,
        mime: bytes | None = None,
        permit: Permit | None = None,
        progress: Progress | None = None,
    ) -> list[Outcome]:
        """Take a parcel to the first server of the route that answers; `mime` need not be kept, it can be read.

        Nothing comes of it, and it is due as before, when `permit` does not reach for all servers to be asked. Raises
        `Shortage` when this machine lacks what it needs to ask any, with nothing handed over.
        """
        started_at = self.outside.now()
        if mime is None:
            mime = self.store.messages.to_send(parcel.message_id).mime
        if mime is None:
            mime = await self.store.messages.content(parcel.message_id)
        sender = parcel.recipients[0].envelope_from
        if len(mime) < LARGE:
            transaction = _transaction(parcel, sender, prepare(signature + mime), mime)
        else:
            payload = await trio.to_thread.run_sync(_prepare, signature, mime, limiter=self.preparing)
            transaction = _transaction(parcel, sender, payload, mime)
        del mime  # the payload is enough to keep for as long as a server takes
        trip = _Trip(route, transaction, slot, started_at, progress or Progress(trio.current_time()))
        reached = await self._try_hosts(trip, permit)
        return [] if reached is None else self._outcomes(parcel, reached, slot, signature)

    def gave_way(self, parcel: Parcel, gate: Gate, progress: Progress, started_at: int) -> list[Outcome]:
        """What it means for a parcel that its session was ended because its server did nothing and others waited."""
        if progress.address is not None:
            self.slow.add(progress.address)
        seconds = trio.current_time() - progress.moved_at
        text = f"no answer for {seconds:.0f} s while other mail waited for the session"
        contact = Contact(started_at, gate.pool, progress.host, progress.address)
        now = self.outside.now()
        return [
            outcome(recipient, TEMPORARY, None, text, contact, now, self.retries) for recipient in parcel.recipients
        ]

    # ---- one server after the other

    async def _try_hosts(self, trip: _Trip, permit: Permit | None) -> _Reached | None:
        slot = trip.slot
        reached: _Reached | None = None
        for host in trip.route.hosts:
            for address, dialled in zip(host.addresses, host.dialled, strict=True):
                if not slot.move(trip.route, host.name, dialled):
                    continue
                if permit is not None and not permit.dials(address, slot.gate.pool):
                    continue
                reached = await self._try(trip, host, dialled)
                if reached.final:
                    if permit is not None:
                        permit.reached(reached.gate.pool)
                    return reached
                self._tell(reached, slot)
                if permit is not None:
                    permit.failed(address)
        if permit is not None:
            permit.keep_only(0)
            return None if permit.is_short else reached
        assert reached is not None  # noqa: S101 - a route has at least one address
        return reached

    async def _try(self, trip: _Trip, host: Host, dialled: str) -> _Reached:
        route, slot, recipients = trip.route, trip.slot, trip.transaction.recipients
        trip.progress.begin(host.name, dialled, trio.current_time())
        demand = await self.tls.demand(route, host)
        contact = Contact(trip.started_at, slot.gate.pool, host.name, dialled)
        if demand.level is Level.NOT_NOW:
            refused = NotOpened(lost(Stage.STARTTLS, Cause.TLS_NOT_VERIFIED, demand.reason), ())
            return _Reached(refused.results(recipients), contact, False, slot.gate)
        place = Place(host.name, dialled, route.port, demand.reason, route.relay)
        if (idle := self.connections.take(place)) is not None:
            reached = await self._send(idle, place, trip, slot.gates.at(route, host.name, dialled), contact)
            if reached is not None:
                return reached
        try:
            connection = await self._open(route, place, self.tls.plan(demand, route, host), trip.progress)
        except NotOpened as failure:
            if failure.verdict.cause is Cause.TIMEOUT:
                self.slow.add(dialled)
            gate = slot.gates.at(route, host.name, dialled)
            if failure.verdict.kind is Kind.LOST and failure.verdict.stage is Stage.GREETING:
                slot.gates.proofs.silent(dialled)
            contact = contact._replace(dialogue=failure.transcript, pool=gate.pool)
            return _Reached(failure.results(recipients), contact, False, gate)
        if route.relay is None:
            verified = connection.tls is not None and connection.tls.verified
            slot.gates.proofs.answered(host.name, dialled, verified=verified)
        fresh = await self._send(connection, place, trip, slot.gates.at(route, host.name, dialled), contact)
        assert fresh is not None  # noqa: S101 - only a reused connection can be stale
        return fresh

    async def _open(self, route: Route, place: Place, plan: TlsPlan | None, progress: Progress) -> Connection:
        """Dial and greet. Without a demand for TLS a broken handshake is tried again in the clear (RFC 7435)."""
        try:
            return await self._open_once(route, place, plan, progress)
        except NotOpened as failure:
            if plan is None or plan.required or not _is_about_tls(failure.verdict):
                raise
            why = failure.transcript
        connection = await self._open_once(route, place, None, progress)
        connection.transcript = why + connection.transcript  # so that the record says why it was not encrypted
        return connection

    async def _open_once(self, route: Route, place: Place, plan: TlsPlan | None, progress: Progress) -> Connection:
        relay = route.relay
        credentials = Credentials(relay.username, relay.password) if relay and relay.username else None
        return await Connection.open(
            await self._dial(place),
            self.hello_name,
            watch=self.watch,
            tls=plan,
            credentials=credentials,
            timeouts=self.slow.timeouts(place.address),
            progress=progress,
        )

    async def _dial(self, place: Place) -> trio.abc.Stream:
        seconds = self.slow.connect_timeout(place.address)
        try:
            with trio.fail_after(seconds):
                return await self.outside.dial(place.address, place.port)
        except trio.TooSlowError:
            reason = f"no connection within {seconds:g} seconds"
            raise NotOpened(lost(Stage.GREETING, Cause.TIMEOUT, reason), ()) from None
        except OSError as error:
            raise_if_short(error, place.address)
            reason = f"no connection: {error.strerror or error}"
            raise NotOpened(lost(Stage.GREETING, Cause.CONNECTION_LOST, reason), ()) from error

    async def _send(
        self, connection: Connection, place: Place, trip: _Trip, gate: Gate, contact: Contact
    ) -> _Reached | None:
        """Hand over; None when a reused connection turned out to be closed and nothing was tried."""
        sent = await connection.send(trip.transaction, trip.progress)
        if sent.stale:
            return None
        if any(result.verdict.cause is Cause.TIMEOUT for result in sent.recipients):
            self.slow.add(place.address)
        else:
            self.slow.remove(place.address)
            connection.allow(self.slow.usual)
        self.connections.give_back(place, connection, gate.limits.messages_per_connection)
        lines = (connection.transcript + sent.transcript) if connection.transactions == 1 else sent.transcript
        tls = str(connection.tls) if connection.tls else None
        full = Contact(contact.started_at, gate.pool, contact.host, contact.address, tls, lines)
        final = not all(_may_ask_another(each) for each in sent.recipients)
        return _Reached(sent.recipients, full, final, gate)

    # ---- what it means

    def _outcomes(self, parcel: Parcel, reached: _Reached, slot: Slot, signature: bytes) -> list[Outcome]:
        now, verdicts = self.outside.now(), [result.verdict for result in reached.results]
        judgements = self._tell(reached, slot) if reached.final else _judge(verdicts)
        if slot.probes is not None:
            judgements = [_of_probe(judgement) for judgement in judgements]
        return [
            outcome(recipient, judgement, verdict.code, verdict.text, reached.contact, now, self.retries, signature)
            for recipient, judgement, verdict in zip(parcel.recipients, judgements, verdicts, strict=True)
        ]

    def _tell(self, reached: _Reached, slot: Slot) -> list[Judgement]:
        """Judge what a server said, and tell the gate of that server."""
        verdicts = [result.verdict for result in reached.results]
        judgements = _judge(verdicts)
        _tell_gate(reached.gate, slot, list(zip(judgements, verdicts, strict=True)), self.outside.now())
        return judgements


def _judge(verdicts: Sequence[Verdict]) -> list[Judgement]:
    return [judge(verdict, len(verdicts)) for verdict in verdicts]


def _of_probe(judgement: Judgement) -> Judgement:
    """A message that went to see whether we are still refused is not to be lost by it."""
    if judgement.fault is Fault.SENDER and judgement.result is Result.BOUNCED:
        return judgement._replace(result=Result.DEFERRED)
    return judgement


def _prepare(signature: bytes, mime: bytes) -> Payload:
    return prepare(signature + mime)


def _transaction(parcel: Parcel, sender: str, payload: Payload, mime: bytes) -> Transaction:
    recipients = tuple(parse(recipient.address, "to").wire for recipient in parcel.recipients)
    eight_bit_header = payload.eight_bit and not mime[: mime.find(b"\r\n\r\n")].isascii()
    return Transaction(sender, recipients, payload, needs_smtputf8=eight_bit_header)


def _tell_gate(gate: Gate, slot: Slot, told: Sequence[tuple[Judgement, Verdict]], now: int) -> None:
    """What one transaction says of the pool, each thing once: a message refused for ten recipients is one refusal."""
    if all(judgement is DELIVERED for judgement, _ in told):  # as nearly always
        slot.hear(gate, delivered=True)
        gate.delivered(slot.account)
        return
    if all(verdict.code is None for _, verdict in told):  # nobody said anything
        return
    slot.hear(gate, delivered=any(judgement.result is Result.DELIVERED for judgement, _ in told))
    wishes = [verdict for judgement, verdict in told if judgement.throttle]
    refusals = [verdict for judgement, verdict in told if judgement.fault is Fault.SENDER]
    if slot.delivered:
        gate.delivered(slot.account)
    elif refusals:
        about_us = is_before_mail(refusals[0])
        gate.refused_as_sender(now, refusals[0].text[:200], slot.sender, about_us=about_us)
    if wishes:
        gate.slow_down(now, wishes[0].text[:200], slot.sender, about_us=is_before_mail(wishes[0]))


def _is_about_tls(verdict: Verdict) -> bool:
    """Whether it was the handshake that failed, so that the same server may be asked without."""
    return verdict.cause is Cause.TLS_FAILED or (verdict.stage, verdict.cause) == (Stage.STARTTLS, Cause.TIMEOUT)


def _may_ask_another(result: RecipientResult) -> bool:
    """Whether another server of the same domain may be tried at once: nothing was handed over to this one.

    Not after the final dot: the server may have taken the message, and only its answer got lost.
    """
    verdict = result.verdict
    return verdict.kind is Kind.LOST and verdict.stage is not Stage.END_OF_DATA
