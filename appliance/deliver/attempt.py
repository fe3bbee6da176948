"""Attempts to deliver one envelope: finds a server of its route that answers, hands the message over, and returns the
outcome of each recipient. Idle connections are kept for the next message to the same server.

Invariant: a message is handed to another server only if none has received its final dot. Every failure is an outcome;
only `Shortage`, a lack of this machine, is raised, and then nothing was handed over.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import trio

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.deliver.due_mail import Envelope
from appliance.deliver.outcome import (
    DELIVERED,
    TEMPORARY,
    Contact,
    Disposition,
    FaultSide,
    Judgement,
    Retries,
    judge,
    judge_no_route,
    outcome,
)
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import PoolLimiters, PoolSlot
from appliance.deliver.preparing import Ready, Routed
from appliance.deliver.route import Host, NoRoute, Relay
from appliance.deliver.smtp.connection import (
    CONNECTION,
    DeadlineWatch,
    LeaseLost,
    Progress,
    SlowServers,
    SmtpConnection,
    Timeouts,
)
from appliance.deliver.smtp.protocol import Cause, NotOpened, RelayCredentials, ResultKind, Stage, Verdict, lost
from appliance.deliver.smtp.sending import MailTransaction, Payload, prepare
from appliance.deliver.smtp.tls import TlsPlan
from appliance.deliver.tls_policy import TlsChoice, TlsLevel
from appliance.deliver.warmup import Permit, Warmup
from appliance.environment import Environment
from appliance.errors import Refused, StorageUnavailable
from appliance.feedback.return_path import ReturnPaths
from appliance.message.addresses import parse
from appliance.message.dkim import sign
from appliance.message.seven_bit import CannotEncode, seven_bit
from appliance.model.mail import DueRecipient, Outcome
from appliance.net.dial import IdlePool, Shortage, raise_if_short
from appliance.store import Store
from appliance.telemetry.log import get_logger

# ---- idle connections

SMTP_IDLE_LIMIT = 20.0  # seconds a connection waits for the next message; servers give up on idle ones at 30 to 300
IDLE_CONNECTIONS = 100  # kept open in all


class ConnectionKey(NamedTuple):
    """What makes two connections interchangeable: the same server, address, demand for TLS, and login."""

    host: str
    address: str
    port: int
    tls: Hashable  # the demand, without the domain whose it is: a provider's domains share connections
    relay: Relay | None = None  # whom we are logged in to, and as whom


class Connections(IdlePool[ConnectionKey, SmtpConnection]):
    def __init__(self, most_idle: int = IDLE_CONNECTIONS) -> None:
        super().__init__()
        self.most_idle = most_idle
        self.to_quit: list[SmtpConnection] = []

    def give_back(self, key: ConnectionKey, connection: SmtpConnection, most_transactions: int) -> None:
        """Keep a connection for the next message; one that has carried enough is to be closed.

        Not at once: what the server has just taken is to be recorded without waiting for its answer to QUIT.
        """
        if not connection.reusable:
            return
        if connection.transactions >= most_transactions or len(self) >= self.most_idle:
            self.to_quit.append(connection)
        else:
            self.put(key, connection)

    async def close_idle(self, older_than: float = SMTP_IDLE_LIMIT) -> None:
        """Say QUIT on the connections that have not been used for a while."""
        limit = trio.current_time() - older_than
        while (connection := self.take_oldest(idle_since=limit)) is not None:
            self.to_quit.append(connection)
        await self.quit_ended()

    async def drop_idle(self) -> None:
        """Close all idle connections at once, without QUIT: this machine needs the descriptors."""
        dropped, self.to_quit = self.to_quit, []
        while (connection := self.take_oldest()) is not None:
            dropped.append(connection)
        for connection in dropped:
            await connection.aclose()

    async def quit_ended(self) -> None:
        """Say QUIT on the connections that are to be closed."""
        ending, self.to_quit = self.to_quit, []
        async with trio.open_nursery() as nursery:
            for connection in ending:
                nursery.start_soon(connection.quit)


# ---- attempts

THREAD_BYTES = 256 * 1024  # of a message whose payload is made in a thread
LOGIN_REMINDER = 3_600.0  # seconds until a login that is still refused is logged again
RELAYS_KEPT = 1_000
LONG_WAIT = 1.0  # seconds pending after which the store is asked whether an envelope is still wanted

log = get_logger("deliver")


class Holder(NamedTuple):
    """Who has a session: an account, for a pool that is known to answer or for any other pool."""

    account: str
    answers: bool


@dataclass(slots=True, eq=False)
class ActiveAttempt:
    """One envelope in its SMTP session, with what it holds until the session is over."""

    ready: Ready
    slot: PoolSlot
    permit: Permit
    holder: Holder  # of its session
    started_at: int
    began: float  # the same on Trio's clock
    progress: Progress
    scope: trio.CancelScope | None = None  # of its session
    gives_way: bool = False  # its session was cancelled, for its server did nothing and other mail waited
    successor: str | None = None  # the pool whose mail gets the session, if that uses up no attempt
    slow: bool = False  # it has waited long for its server
    envelope: Envelope | None = None  # what of it is under delivery

    def give_way(self) -> None:
        self.gives_way = True
        if self.scope is not None:
            self.scope.cancel()


class UnreadableAddress(Exception):
    """The stored address of a recipient cannot be parsed; another version accepted it."""

    def __init__(self, recipient: DueRecipient) -> None:
        super().__init__(f"recipient {recipient.id} has an unreadable address")
        self.recipient = recipient


def _wire_address(recipient: DueRecipient) -> str:
    try:
        return parse(recipient.address, "to").wire
    except (Refused, ValueError) as fault:
        raise UnreadableAddress(recipient) from fault


class _Reached(NamedTuple):
    """How far an attempt came with one server, and what that said of each recipient."""

    verdicts: tuple[Verdict, ...]
    contact: Contact
    final: bool  # no other server need be asked
    limiter: PoolLimiter  # of that server
    relayed: bool = False  # it is a relay that the operator named


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverer:
    store: Store
    env: Environment
    connections: Connections
    tls: TlsChoice
    hello_name: str
    retries: Retries
    limiters: PoolLimiters
    warmup: Warmup
    return_paths: ReturnPaths
    slow: SlowServers = field(default_factory=lambda: SlowServers(Timeouts()))
    watch: DeadlineWatch = field(default_factory=DeadlineWatch)
    refused_logins: TtlCache[Relay, bool] = field(default_factory=lambda: TtlCache(RELAYS_KEPT, LOGIN_REMINDER))
    payload_limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))  # large messages
    # Of messages in several sessions at once, by message: memory holds one copy.
    _payloads: WeakValueDictionary[str, Payload] = field(default_factory=WeakValueDictionary)
    _making: SingleFlight[str, Payload] = field(default_factory=SingleFlight)

    # ---- an attempt

    async def attempt(self, active: ActiveAttempt) -> list[Outcome] | None:
        """The outcomes of an envelope; none for recipients that were cancelled while they waited.

        None: no server could be tried, by the warm-up or because its pool is held, and the envelope is due as before.
        """
        routed, active.progress.may_hand_over = active.ready.routed, self.store.engine.holds_lease
        if not self.store.engine.holds_lease():
            return None
        try:
            envelope = await self._still_wanted(routed)
        except StorageUnavailable:  # the storage is away
            return None
        self.warmup.use_only(active.permit, 0 if envelope is None else len(envelope.recipients))
        if envelope is None:
            return []
        active.envelope = envelope
        try:
            return await self._deliver(active, envelope)
        except Shortage:
            raise
        except (StorageUnavailable, LeaseLost):  # the storage is away, and no server has been given the message
            return None
        except UnreadableAddress as unreadable:  # a poll reads the other recipients without this one
            only = envelope._replace(recipients=(unreadable.recipient,))
            return self.not_attempted(only, unreadable, self.env.now())
        except Exception as error:
            return self.not_attempted(envelope, error, self.env.now())
        except BaseExceptionGroup as group:  # an error of ours beside a cancellation, which goes on to its scope
            cancelled, errors = group.split(trio.Cancelled)
            if cancelled is None or not isinstance(errors, ExceptionGroup):
                raise
            log.exception("delivery failed", errors, message_id=envelope.message_id, domain=envelope.domain)
            raise cancelled from None

    def gave_way(self, active: ActiveAttempt) -> list[Outcome] | None:
        """The outcomes of an envelope whose session was cancelled because its server did nothing."""
        if active.envelope is None:
            return None
        self.warmup.use_only(active.permit, 0)
        progress = active.progress
        if progress.address is not None:
            self.slow.add(progress.address)
        seconds = trio.current_time() - progress.moved_at
        text = f"no answer for {seconds:.0f} s while other mail waited for the session"
        contact = Contact(active.started_at, active.slot.limiter.pool, progress.host, progress.address)
        return self._alike(active.envelope, TEMPORARY, text, contact)

    def not_attempted(self, envelope: Envelope, reason: Exception, started_at: int) -> list[Outcome]:
        """The outcomes of an envelope without a route, or that met an error of ours: temporary, as all unknown ones."""
        if not isinstance(reason, NoRoute):
            log.exception("delivery failed", reason, message_id=envelope.message_id, domain=envelope.domain)
            reason = NoRoute("4.3.0", "an error on our side; it is in the operator's log")
        judgement, text = judge_no_route(reason), f"{reason.status} {reason.text}"
        return self._alike(envelope, judgement, text, Contact(started_at), reason.status)

    def _alike(
        self, envelope: Envelope, judgement: Judgement, text: str, contact: Contact, status: str | None = None
    ) -> list[Outcome]:
        record = partial(outcome, contact=contact, now=self.env.now(), retries=self.retries)
        return [record(each, judgement, code=None, status=status, text=text) for each in envelope.recipients]

    async def _still_wanted(self, routed: Routed) -> Envelope | None:
        """The envelope without what was cancelled while it waited for its slot; a pool may have been held for days.

        From here on its recipients are under delivery. That begins before the read: a cancellation that is committed
        after the read would not be seen, so it has to see the recipients.
        """
        envelope, under_delivery = routed.envelope, self.store.under_delivery
        message_id, recipients = envelope.message_id, [recipient.id for recipient in envelope.recipients]
        if under_delivery.is_being_cancelled(message_id):
            return None  # if the cancellation fails, it is still due, and found by the next poll
        under_delivery.begin(recipients)
        if trio.current_time() < routed.since + LONG_WAIT and not under_delivery.was_cancelled(message_id):
            return envelope
        try:
            waiting = await self.store.queue_control.waiting(message_id)
        except BaseException:
            under_delivery.end(recipients)
            raise
        under_delivery.end(each for each in recipients if each not in waiting)
        left = tuple(recipient for recipient in envelope.recipients if recipient.id in waiting)
        return envelope._replace(recipients=left) if left else None

    async def _deliver(self, active: ActiveAttempt, envelope: Envelope) -> list[Outcome] | None:
        """Hand an envelope to the first server of its route that answers."""
        transaction = await self._transaction(active.ready, envelope)
        found = await self._try_hosts(active, transaction)
        if found is None:
            return None
        reached, judgements = found
        if active.slot.probes is not None:  # a message that went to see whether we are still refused is not lost by it
            judgements = [
                each._replace(result=Disposition.DEFERRED)
                if each.fault is FaultSide.SENDER and each.result is Disposition.BOUNCED
                else each
                for each in judgements
            ]
        record = partial(
            outcome,
            contact=reached.contact,
            now=self.env.now(),
            retries=self.retries,
            signature=active.ready.signature,
            mail_from=None if active.ready.routed.return_path is None else transaction.sender,
        )
        outcomes = []
        for recipient, judgement, verdict in zip(envelope.recipients, judgements, reached.verdicts, strict=True):
            outcomes.append(record(recipient, judgement, code=verdict.code, status=verdict.enhanced, text=verdict.text))
            if verdict.kind is not ResultKind.ACCEPTED:  # its text was judged, which takes up to 0.3 ms
                await trio.lowlevel.cancel_shielded_checkpoint()
        return outcomes

    async def _transaction(self, ready: Ready, envelope: Envelope) -> MailTransaction:
        """Without the message itself: the payload is enough to keep for as long as a server takes."""
        first, name = envelope.recipients[0], ready.routed.return_path
        payload = await (self._payload(ready) if first.recipient_count == 1 else self._shared_payload(ready))
        sender = first.envelope_from if name is None else self.return_paths.address(first.id, name)
        recipients = tuple([_wire_address(recipient) for recipient in envelope.recipients])
        return MailTransaction(sender, recipients, payload, payload.eight_bit_header)

    async def _shared_payload(self, ready: Ready) -> Payload:
        """The payload that another session of the same message uses, if there is one."""
        message_id = ready.routed.envelope.message_id
        if (payload := self._payloads.get(message_id)) is None:
            payload = await self._making.run(message_id, partial(self._payload, ready))
            self._payloads[message_id] = payload
        return payload

    async def _payload(self, ready: Ready) -> Payload:
        signature, mime = ready.signature, await self._mime(ready)
        if len(mime) < THREAD_BYTES:
            return prepare(signature + mime)
        return await trio.to_thread.run_sync(lambda: prepare(signature + mime), limiter=self.payload_limiter)

    async def _mime(self, ready: Ready) -> bytes:
        messages, message_id = self.store.messages, ready.routed.envelope.message_id
        return ready.routed.mime or (await messages.to_send(message_id)).mime or await messages.content(message_id)

    async def _encoded(self, ready: Ready, transaction: MailTransaction) -> MailTransaction:
        """The transaction for a server that does not take its message as it is: encoded in seven bits, and signed anew.

        Only here, since what a server offers is known only in its session, and nearly every server offers all.
        """
        mime, keys, now = await self._mime(ready), ready.routed.keys, self.env.now() // 1_000_000

        def encode() -> Payload:
            encoded = seven_bit(mime)
            return prepare(sign(encoded, keys, now_seconds=now) + encoded)

        try:
            payload = await trio.to_thread.run_sync(encode, limiter=self.payload_limiter)
        except CannotEncode as cannot:
            return transaction._replace(unencodable=str(cannot))
        return transaction._replace(payload=payload, needs_smtputf8=False)

    # ---- one server after the other

    async def _try_hosts(
        self, active: ActiveAttempt, transaction: MailTransaction
    ) -> tuple[_Reached, list[Judgement]] | None:
        slot, permit, route = active.slot, active.permit, active.ready.routed.route
        found: tuple[_Reached, list[Judgement]] | None = None
        for host in route.hosts:
            for address, dialled in zip(host.addresses, host.dialled, strict=True):
                if not self.limiters.move(slot, route, host.name, dialled):
                    continue
                if not await self.warmup.may_dial(permit, address, slot.limiter.pool):
                    continue
                reached = await self._try(active, transaction, host, dialled)
                found = reached, await self._tell(reached, slot, transaction.recipients)
                if reached.final:
                    self.warmup.reached(permit, reached.limiter.pool)
                    return found
                self.warmup.did_not_answer(permit, address)
        self.warmup.use_only(permit, 0)
        return None if permit.is_short else found

    async def _try(self, active: ActiveAttempt, transaction: MailTransaction, host: Host, dialled: str) -> _Reached:
        route, progress, count = active.ready.routed.route, active.progress, len(transaction.recipients)
        # Another server, which is not responsible for the time the last one took.
        progress.host, progress.address, progress.awaits = host.name, dialled, CONNECTION
        progress.moved_at = trio.current_time()
        demand = await self.tls.demand(route, host)
        if demand.level is TlsLevel.NOT_NOW:
            refused = lost(Stage.STARTTLS, Cause.TLS_NOT_VERIFIED, demand.reason)
            contact = Contact(active.started_at, active.slot.limiter.pool, host.name, dialled)
            return _Reached((refused,) * count, contact, False, active.slot.limiter)
        key = ConnectionKey(host.name, dialled, route.port, (demand.level, demand.names, demand.records), route.relay)
        if (idle := self.connections.take(key)) is not None:
            reached = await self._send(idle, key, active, transaction)
            if reached is not None:
                return reached
        try:
            connection = await self._open(key, self.tls.plan(demand, route, host), progress)
        except NotOpened as failure:
            verdict, limiter = failure.verdict, self.limiters.at(route, host.name, dialled)
            if verdict.cause is Cause.TIMEOUT:
                self.slow.add(dialled)
            if verdict.kind is ResultKind.LOST and verdict.stage is Stage.GREETING:
                self.limiters.proofs.silent(dialled)
            if route.relay is not None and verdict.kind is ResultKind.REJECTED and verdict.stage is Stage.AUTH:
                self._login_refused(route.relay, verdict)
            contact = Contact(active.started_at, limiter.pool, host.name, dialled, dialogue=failure.transcript)
            return _Reached((verdict,) * count, contact, False, limiter)
        if route.relay is None:
            verified = connection.tls is not None and connection.tls.verified
            self.limiters.proofs.answered(host.name, dialled, verified=verified)
        else:
            self.refused_logins.discard(route.relay)
        fresh = await self._send(connection, key, active, transaction)
        assert fresh is not None  # noqa: S101 - only a reused connection can be stale
        return fresh

    def _login_refused(self, relay: Relay, verdict: Verdict) -> None:
        """All mail to this relay waits for the operator: an error, but not one for each message."""
        if relay not in self.refused_logins:
            self.refused_logins.put(relay, True)
            who, reply = {"relay": relay.host, "username": relay.username}, verdict.text[:200]
            log.error("a relay refuses our login: its mail waits", **who, smtp_code=verdict.code, reply=reply)

    async def _open(self, key: ConnectionKey, plan: TlsPlan | None, progress: Progress) -> SmtpConnection:
        """Dial and greet. Without a demand for TLS a broken handshake is tried again in the clear (RFC 7435)."""
        relay, timeouts = key.relay, self.slow.timeouts(key.address)
        try:
            with trio.fail_after(timeouts.connect):
                stream = await self.env.dial(key.address, key.port)
        except trio.TooSlowError:
            reason = f"no connection within {timeouts.connect:g} seconds"
            raise NotOpened(lost(Stage.GREETING, Cause.TIMEOUT, reason), ()) from None
        except OSError as error:
            raise_if_short(error, key.address)
            reason = f"no connection: {error.strerror or error}"
            raise NotOpened(lost(Stage.GREETING, Cause.CONNECTION_LOST, reason), ()) from error
        try:
            return await SmtpConnection.open(
                stream,
                self.hello_name,
                watch=self.watch,
                tls=plan,
                credentials=RelayCredentials(relay.username, relay.password) if relay and relay.username else None,
                timeouts=timeouts,
                progress=progress,
            )
        except NotOpened as failure:
            verdict, why = failure.verdict, failure.transcript
            handshake = verdict.stage is Stage.STARTTLS and verdict.cause in (Cause.TLS_FAILED, Cause.TIMEOUT)
            if plan is None or plan.required or not handshake:
                raise
        connection = await self._open(key, None, progress)
        connection.transcript = why + connection.transcript  # so that the record says why it was not encrypted
        return connection

    async def _send(
        self, connection: SmtpConnection, key: ConnectionKey, active: ActiveAttempt, transaction: MailTransaction
    ) -> _Reached | None:
        """Hand over; None when a reused connection turned out to be closed and nothing was tried."""
        limiter = self.limiters.at(active.ready.routed.route, key.host, key.address)
        if transaction.payload.eight_bit and not transaction.fits(connection.capabilities):
            try:
                transaction = await self._encoded(active.ready, transaction)
            except BaseException:
                await connection.aclose()
                raise
        result = await connection.send(transaction, active.progress)
        if result.stale:
            return None
        if any(each.cause is Cause.TIMEOUT for each in result.verdicts):
            self.slow.add(key.address)
        else:
            self.slow.remove(key.address)
            connection.timeouts = self.slow.usual
        most = 0 if _all_put_off(result.verdicts) else limiter.limits.messages_per_connection
        self.connections.give_back(key, connection, most)
        lines = (connection.transcript + result.transcript) if connection.transactions == 1 else result.transcript
        tls = str(connection.tls) if connection.tls else None
        contact = Contact(active.started_at, limiter.pool, key.host, key.address, tls, lines)
        # Another server may be tried at once only if nothing was handed over to this one. Not after the final dot: the
        # server may have taken the message, and only its answer got lost.
        final = any(each.kind is not ResultKind.LOST or each.stage is Stage.END_OF_DATA for each in result.verdicts)
        return _Reached(result.verdicts, contact, final, limiter, key.relay is not None)

    # ---- what it means

    async def _tell(self, reached: _Reached, slot: PoolSlot, addresses: tuple[str, ...]) -> list[Judgement]:
        """Judge what a server said, and tell its limiter each thing once: ten recipients refused are one refusal."""
        verdicts, limiter, now = reached.verdicts, reached.limiter, self.env.now()
        judgements = []
        for verdict in verdicts:
            judgements.append(judge(verdict, len(verdicts), relayed=reached.relayed))
            if verdict.kind is not ResultKind.ACCEPTED:  # as in `_deliver`
                await trio.lowlevel.cancel_shielded_checkpoint()
        if all(judgement is DELIVERED for judgement in judgements):  # as nearly always
            slot.hear(limiter, delivered=True)
            limiter.delivered(slot.account)
            for address in addresses:
                self.limiters.note_accepted(limiter, slot.account, address)
            return judgements
        if all(verdict.code is None for verdict in verdicts):  # no server said anything
            return judgements
        told = list(zip(judgements, verdicts, strict=True))
        slot.hear(limiter, delivered=any(judgement.result is Disposition.DELIVERED for judgement in judgements))
        wishes = [verdict for judgement, verdict in told if judgement.throttle]
        unexplained = []
        for address, judgement, verdict in zip(addresses, judgements, verdicts, strict=True):
            if judgement is DELIVERED:
                self.limiters.note_accepted(limiter, slot.account, address)
            elif judgement.if_repeated:
                unexplained.append((address, verdict))
        wishes += self.limiters.repeated(limiter, slot.account, unexplained)
        refusals = [verdict for judgement, verdict in told if judgement.fault is FaultSide.SENDER]
        if slot.delivered:
            limiter.delivered(slot.account)
        elif refusals:
            first, sender = refusals[0], await self.limiters.sender(slot)
            limiter.refused_as_sender(now, first.text[:200], sender, about_us=first.is_before_mail)
        if wishes:
            first, sender = wishes[0], await self.limiters.sender(slot)
            limiter.slow_down(now, first.text[:200], sender, about_us=first.is_before_mail)
        return judgements


def _all_put_off(verdicts: Iterable[Verdict]) -> bool:
    """Whether every RCPT was answered 4xx.

    Postfix's postscreen answers so to a client that has passed its tests, and takes mail only on the next connection;
    whatever else followed on this one would be put off as well.
    """
    asked = [verdict for verdict in verdicts if verdict.kind is not ResultKind.LOCAL]
    put_off = (verdict.kind is ResultKind.DEFERRED and verdict.stage is Stage.RCPT for verdict in asked)
    return bool(asked) and all(put_off)
