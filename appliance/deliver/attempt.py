"""Attempts to deliver one envelope: tries the servers of its route in order, hands the message to the first that
accepts the connection, and returns an outcome for each recipient.

Invariant: a message goes to another server only if no server has received its final dot. Every failure is an outcome.
Only `Shortage`, a lack of resources on this machine, is raised, and then no server has the message.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple

import trio
from msgspec import Struct

from appliance.concurrency.ttl_cache import TtlCache, trio_clock
from appliance.deliver.outcome import TEMPORARY, Contact, Judgement, Retries, judge_no_route, outcome
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import PoolLimiters, PoolSlot
from appliance.deliver.preparing import Envelope, Payloads, Ready, Routed
from appliance.deliver.ramp import Ramp
from appliance.deliver.route import Host, NoRoute, Relay, Route
from appliance.deliver.smtp.connection import (
    CONNECTION,
    ConnectionKey,
    Connections,
    DeadlineWatch,
    LeaseLost,
    Progress,
    SlowServers,
    SmtpConnection,
    Timeouts,
)
from appliance.deliver.smtp.protocol import (
    Cause,
    NotOpened,
    RelayCredentials,
    ResultKind,
    Stage,
    Verdict,
    lost,
)
from appliance.deliver.smtp.sending import MailTransaction
from appliance.deliver.smtp.tls import TlsPlan
from appliance.deliver.sources import Sources
from appliance.deliver.tls_policy import TlsChoice, TlsDemand, TlsLevel
from appliance.deliver.verdicts import Reached, Verdicts, defer_refusals, is_every_rcpt_deferred
from appliance.deliver.warmup import Permit, Warmup
from appliance.environment import CannotBind, Environment
from appliance.errors import Refused, StorageUnavailable
from appliance.feedback.return_path import ReturnPaths
from appliance.message.addresses import parse
from appliance.model.mail import DueRecipient, Outcome
from appliance.net.dial import Shortage, raise_if_short
from appliance.store import Store
from appliance.telemetry.log import get_logger

LOGIN_REMINDER = 3_600.0  # seconds until a login that a relay still refuses is logged again
RELAYS_KEPT = 1_000
DEMAND_FRESH, DEMANDS_KEPT = 1.0, 1_000  # seconds for which messages share the TLS demand of a server; servers
LONG_WAIT = 1.0  # seconds in the queue after which an attempt checks whether its recipients were cancelled

log = get_logger("deliver")


class SourceGone(Exception):
    """A session could not bind to its source's address; no server was dialled."""


class Holder(NamedTuple):
    """Who holds a session: an account's mail of one priority and age, at a pool known to answer or at another pool."""

    account: str
    low: int
    new: int
    answers: bool


class ActiveAttempt(Struct, eq=False):
    """One envelope in its SMTP session, with the resources it holds until the session ends."""

    ready: Ready
    slot: PoolSlot
    permit: Permit
    holder: Holder
    started_at: int
    began: float  # the same by Trio's clock
    progress: Progress
    scope: trio.CancelScope | None = None
    gives_way: bool = False  # cancelled: its server did nothing while other mail needed the session
    successor: str | None = None  # the pool whose mail gets the session; then this envelope uses no attempt
    slow: bool = False  # its server has been slow to answer
    envelope: Envelope | None = None  # the recipients under delivery

    def give_way(self) -> None:
        self.gives_way = True
        if self.scope is not None:
            self.scope.cancel()


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
    sources: Sources
    ramp: Ramp
    slow: SlowServers = field(default_factory=lambda: SlowServers(Timeouts()))
    watch: DeadlineWatch = field(default_factory=DeadlineWatch)
    refused_logins: TtlCache[Relay, bool] = field(default_factory=lambda: TtlCache(RELAYS_KEPT, LOGIN_REMINDER))
    demands: TtlCache[tuple[str, str], tuple[TlsDemand, Route]] = field(
        default_factory=lambda: TtlCache(DEMANDS_KEPT, DEMAND_FRESH)
    )
    clock: Callable[[], float] = field(default_factory=trio_clock)
    payloads: Payloads = field(init=False)
    verdicts: Verdicts = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payloads", Payloads(self.store, self.env))
        object.__setattr__(self, "verdicts", Verdicts(self.env, self.limiters, self.sources))

    async def attempt(self, active: ActiveAttempt) -> list[Outcome] | None:
        """Return the outcomes of an envelope; None: the warm-up, a hold or the storage prevented the attempt."""
        routed, active.progress.may_hand_over = active.ready.routed, self.store.engine.holds_lease
        if not self.store.engine.holds_lease():
            return None
        try:
            envelope = await self._still_wanted(routed)
            if envelope is not None and envelope.via and not await self.ramp.bind(envelope.recipients, envelope.via):
                envelope = None  # the next poll reads it with its route
        except StorageUnavailable:
            return None
        self.warmup.use_only(active.permit, 0 if envelope is None else len(envelope.recipients))
        if envelope is None:
            return []
        active.envelope = envelope
        try:
            return await self._deliver(active, envelope)
        except Shortage:
            raise
        except (StorageUnavailable, LeaseLost, SourceGone):  # no server has the message
            return None
        except Exception as error:
            return self.not_attempted(envelope, error, self.env.now())
        except BaseExceptionGroup as group:  # an error of ours with a cancellation, which must reach its scope
            cancelled, errors = group.split(trio.Cancelled)
            if cancelled is None or not isinstance(errors, ExceptionGroup):
                raise
            log.exception("delivery failed", errors, message_id=envelope.message_id, domain=envelope.domain)
            raise cancelled from None

    def gave_way(self, active: ActiveAttempt) -> list[Outcome] | None:
        """Return the outcomes of an envelope whose session was cancelled because its server did nothing."""
        if active.envelope is None:
            return None
        self.warmup.use_only(active.permit, 0)
        progress = active.progress
        if progress.address is not None:
            self.slow.add(progress.address)
        seconds = trio.current_time() - progress.moved_at
        text = f"no answer for {seconds:.0f} s while other mail needed the session"
        contact = self._contact(active, active.slot.limiter, progress.host, progress.address)
        return self._same_for_all(active.envelope, TEMPORARY, text, contact)

    def not_attempted(self, envelope: Envelope, reason: Exception, started_at: int) -> list[Outcome]:
        """Return the outcomes of an envelope without a route, or after an error of ours, which counts as temporary."""
        if not isinstance(reason, NoRoute):
            log.exception("delivery failed", reason, message_id=envelope.message_id, domain=envelope.domain)
            reason = NoRoute("4.3.0", "an error on our side; it is in the operator's log")
        judgement, text = judge_no_route(reason), f"{reason.status} {reason.text}"
        return self._same_for_all(envelope, judgement, text, Contact(started_at), reason.status)

    @staticmethod
    def _contact(
        active: ActiveAttempt, limiter: PoolLimiter, host: str | None, address: str | None, tls: str | None = None
    ) -> Contact:
        return Contact(active.started_at, limiter.base, host, address, tls, limiter.source or None)

    def _same_for_all(
        self, envelope: Envelope, judgement: Judgement, text: str, contact: Contact, status: str | None = None
    ) -> list[Outcome]:
        via, provider = envelope.via or self.ramp.usual(envelope.domain), self.ramp.provider_of(envelope.domain)
        record = partial(outcome, contact=contact, now=self.env.now(), retries=self.retries, via=via, provider=provider)
        return [record(recipient, judgement, code=None, status=status, text=text) for recipient in envelope.recipients]

    async def _still_wanted(self, routed: Routed) -> Envelope | None:
        """The envelope without recipients that were cancelled while it was queued; a pool may be held for days.

        From here on its recipients are under delivery. That begins before the read, because a cancellation committed
        after the read must see the recipients.
        """
        envelope, under_delivery = routed.envelope, self.store.under_delivery
        message_id, recipients = envelope.message_id, [recipient.id for recipient in envelope.recipients]
        if under_delivery.is_being_cancelled(message_id):
            return None  # if the cancellation fails, the next poll returns the envelope
        under_delivery.begin(recipients)
        if self.clock() < routed.since + LONG_WAIT and not under_delivery.was_cancelled(message_id):
            return envelope
        try:
            waiting = await self.store.queue_control.waiting(message_id)
        except BaseException:
            under_delivery.end(recipients)
            raise
        under_delivery.end(id_ for id_ in recipients if id_ not in waiting)
        remaining = tuple(recipient for recipient in envelope.recipients if recipient.id in waiting)
        return envelope._replace(recipients=remaining) if remaining else None

    async def _deliver(self, active: ActiveAttempt, envelope: Envelope) -> list[Outcome] | None:
        recipients, addresses, unreadable = self._addresses(envelope)
        rest, text = envelope._replace(recipients=tuple(unreadable)), "4.1.3 the stored address cannot be read"
        contact = Contact(active.started_at)
        outcomes = self._same_for_all(rest, TEMPORARY, text, contact, "4.1.3") if unreadable else []
        if not recipients:
            self.warmup.use_only(active.permit, 0)
            return outcomes
        # Only the payload stays in memory during the session, not the message.
        payload, name = await self.payloads.of(active.ready), active.ready.routed.return_path
        sender = recipients[0].envelope_from if name is None else self.return_paths.address(recipients[0].id, name)
        transaction = MailTransaction(sender, addresses, payload, payload.eight_bit_header)
        result = await self._try_hosts(active, transaction)
        if result is None:
            return None
        reached, judgements = result
        if active.slot.probes is not None:  # a refused probe is not bounced
            judgements = defer_refusals(judgements)
        record = partial(
            outcome,
            contact=reached.contact,
            now=self.env.now(),
            retries=self.retries,
            signature=active.ready.signature,
            mail_from=None if name is None else sender,
            via=active.ready.routed.route.taken,
            provider=None if envelope.via is None else self.ramp.provider_of(envelope.domain),
        )
        results = zip(recipients, judgements, reached.verdicts, reached.dialogues, strict=True)
        for recipient, judgement, verdict, dialogue in results:
            code, status = verdict.code, verdict.enhanced
            outcomes.append(
                record(recipient, judgement, code=code, status=status, text=verdict.text, dialogue=dialogue)
            )
            if verdict.kind is not ResultKind.ACCEPTED:  # judging its text takes up to 0.3 ms
                await trio.lowlevel.cancel_shielded_checkpoint()
        return outcomes

    def _addresses(self, envelope: Envelope) -> tuple[list[DueRecipient], tuple[str, ...], list[DueRecipient]]:
        """The readable recipients, their addresses, and the others, whose address an older version stored."""
        recipients, addresses, unreadable = list[DueRecipient](), list[str](), list[DueRecipient]()
        for recipient in envelope.recipients:
            try:
                addresses.append(parse(recipient.address, "to").wire)
                recipients.append(recipient)
            except (Refused, ValueError) as fault:
                unreadable.append(recipient)
                ids = {"message_id": envelope.message_id, "recipient_id": recipient.id}
                log.error("recipient deferred: stored address cannot be read", **ids, reason=str(fault))
        return recipients, tuple(addresses), unreadable

    # ---- one server after the other

    async def _try_hosts(
        self, active: ActiveAttempt, transaction: MailTransaction
    ) -> tuple[Reached, list[Judgement]] | None:
        slot, permit, route = active.slot, active.permit, active.ready.routed.route
        result: tuple[Reached, list[Judgement]] | None = None
        for host in route.hosts:
            for address, dialled in zip(host.addresses, host.dialled, strict=True):
                if not self.limiters.move(slot, route, host.name, dialled):
                    continue
                if not await self.warmup.may_dial(permit, address, slot.limiter.base):
                    continue
                reached = await self._try(active, transaction, host, dialled)
                result = reached, await self.verdicts.judge(reached, slot, active.ready.routed, transaction.recipients)
                if reached.final:
                    self.warmup.reached(permit, reached.limiter.base)
                    return result
                self.warmup.did_not_answer(permit, address)
        self.warmup.use_only(permit, 0)
        return None if permit.is_short else result

    async def _try(self, active: ActiveAttempt, transaction: MailTransaction, host: Host, dialled: str) -> Reached:
        route, progress, count = active.ready.routed.route, active.progress, len(transaction.recipients)
        # The time that the previous server took does not count for this one.
        progress.host, progress.address, progress.awaits = host.name, dialled, CONNECTION
        progress.moved_at = self.clock()
        demand = await self._demand(route, host)
        if demand.level is TlsLevel.NOT_NOW:
            refused = lost(Stage.STARTTLS, Cause.TLS_NOT_VERIFIED, demand.reason)
            contact = self._contact(active, active.slot.limiter, host.name, dialled)
            return Reached((refused,) * count, ((),) * count, contact, False, active.slot.limiter)
        security = demand.level, demand.names, demand.records
        key = ConnectionKey(host.name, dialled, route.port, security, route.relay, route.source)
        if (idle := self.connections.take(key)) is not None:
            reached = await self._send(idle, key, active, transaction)
            if reached is not None:
                return reached
        try:
            connection = await self._open(key, route.relay, self.tls.plan(demand, route, host), progress)
        except NotOpened as failure:
            verdict, limiter = failure.verdict, self.limiters.at(route, host.name, dialled)
            if verdict.cause is Cause.TIMEOUT:
                self.slow.add(dialled)
            if verdict.kind is ResultKind.LOST and verdict.stage is Stage.GREETING:
                self.limiters.servers.silent(dialled)
            if route.relay is not None and verdict.kind is ResultKind.REJECTED and verdict.stage is Stage.AUTH:
                self._login_refused(route.relay, verdict)
            contact = self._contact(active, limiter, host.name, dialled)
            return Reached((verdict,) * count, (failure.transcript,) * count, contact, False, limiter)
        if route.relay is None:
            self.limiters.servers.answered(host.name, dialled)
        else:
            self.refused_logins.discard(route.relay)
        fresh = await self._send(connection, key, active, transaction)
        assert fresh is not None  # noqa: S101 - only a reused connection can be stale
        return fresh

    async def _demand(self, route: Route, host: Host) -> TlsDemand:
        """The TLS demand of a host, looked up once for all messages of a moment on the same route."""
        demand, known = self.demands.get((route.domain, host.name)) or (None, None)
        if demand is None or known is not route:
            demand = await self.tls.policies.demand(route, host)
            self.demands.put((route.domain, host.name), (demand, route))
        return demand

    def _login_refused(self, relay: Relay, verdict: Verdict) -> None:
        """Log a refused login once an hour, not once a message: all mail to the relay is deferred."""
        if relay not in self.refused_logins:
            self.refused_logins.put(relay, True)
            login, reply = {"relay": relay.host, "username": relay.username}, verdict.text[:200]
            log.error("relay login refused; its mail is deferred", **login, smtp_code=verdict.code, reply=reply)

    async def _open(
        self, key: ConnectionKey, relay: Relay | None, plan: TlsPlan | None, progress: Progress
    ) -> SmtpConnection:
        """Dial and greet. If TLS is optional, retry without it after a failed handshake (RFC 7435)."""
        timeouts = self.slow.timeouts(key.address)
        try:
            with trio.fail_after(timeouts.connect):
                stream = await self._dial(key)
        except trio.TooSlowError:
            reason = f"no connection within {timeouts.connect:g} seconds"
            raise NotOpened(lost(Stage.GREETING, Cause.TIMEOUT, reason), ()) from None
        except CannotBind as error:
            raise_if_short(error)
            raise SourceGone from error
        except OSError as error:
            raise_if_short(error, key.address)
            reason = f"no connection: {error.strerror or error}"
            raise NotOpened(lost(Stage.GREETING, Cause.CONNECTION_LOST, reason), ()) from error
        try:
            return await SmtpConnection.open(
                stream,
                self.hello_name if key.source is None else key.source.hostname,
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
        connection = await self._open(key, relay, None, progress)
        connection.transcript = why + connection.transcript  # it shows why the session is not encrypted
        return connection

    async def _dial(self, key: ConnectionKey) -> trio.abc.Stream:
        if key.source is None:
            return await self.env.dial(key.address, key.port)
        address = key.source.address(ip_address(key.address).version)
        try:
            return await self.env.dial_from(key.address, key.port, str(address))
        except CannotBind:
            if address is not None:
                self.sources.note_gone(key.source, address)
            raise

    async def _send(
        self, connection: SmtpConnection, key: ConnectionKey, active: ActiveAttempt, transaction: MailTransaction
    ) -> Reached | None:
        """Hand over; None: the server had closed a reused connection, and nothing was tried."""
        limiter = self.limiters.at(active.ready.routed.route, key.host, key.address)
        if transaction.payload.eight_bit and not transaction.fits(connection.capabilities):
            try:
                transaction = await self.payloads.seven_bit(active.ready, transaction)
            except BaseException:
                await connection.aclose()
                raise
        result = await connection.send(transaction, active.progress)
        if result.stale:
            return None
        if any(verdict.cause is Cause.TIMEOUT for verdict in result.verdicts):
            self.slow.add(key.address)
        else:
            self.slow.remove(key.address)
            connection.timeouts = self.slow.usual
        most = 0 if is_every_rcpt_deferred(result.verdicts) else limiter.limits.messages_per_connection
        self.connections.give_back(key, connection, most)
        dialogues, tls = result.dialogues, str(connection.tls) if connection.tls else None
        if connection.transactions == 1:
            dialogues = tuple([connection.transcript + dialogue for dialogue in dialogues])
        contact = self._contact(active, limiter, key.host, key.address, tls)
        # After the final dot, try no other server: this one may have accepted the message and its reply was lost.
        final = any(
            verdict.kind is not ResultKind.LOST or verdict.stage is Stage.END_OF_DATA for verdict in result.verdicts
        )
        return Reached(result.verdicts, dialogues, contact, final, limiter, key.relay is not None)
