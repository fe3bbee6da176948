"""Checks the senders of received mail, and stores each message with the posts of its event.

The queue is that of feedback; mail takes turns by account and client network. Many messages are claimed in one
transaction and stored together. Small ones whose lookups are cached are checked one after the other; each other one
has a task, since it waits for its sender's DNS servers. A turn and an account have some of the places, so mail with
slow DNS does not delay others'. A message that cannot be read, or ended the process, is stored without content rather
than lost; to find the one that did, each is then checked alone.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import trio
from msgspec import Struct, field

from appliance.concurrency.wake import until_stored
from appliance.config.values import MIB
from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.inbound.authentication import (
    OnThread,
    SenderChecks,
    authenticate,
    authenticate_from_cache,
    organizational,
    unchecked,
)
from appliance.intake.received import received_data
from appliance.keys.received_links import ReceivedLinks
from appliance.message.dkim_check import ReceivedSignature, signatures_of
from appliance.message.received import SHOWN_FIELD, ReceivedContent, read_received
from appliance.model.received import (
    Authentication,
    QueuedReceived,
    ReceivedEnvelope,
    ReceivedFacts,
    WaitingReceived,
)
from appliance.model.received_event import received_envelope
from appliance.store import Store
from appliance.store.received import CheckedMessage, turn_account
from appliance.telemetry.log import MESSAGE_LOG, get_logger
from appliance.telemetry.metrics import RECEIVED

PLACES: Final = 64  # for messages being checked: 64 small ones, or 5 of the largest
ACCOUNT_PLACES: Final = 32
TURN_PLACES: Final = 16
BYTES_PER_PLACE: Final = MIB
TURNS_TRIED: Final = 64  # for the next messages, before other tasks run
CLAIM_REST: Final = 0.05  # seconds between two claims, so that each is of several messages
CLAIMED_ON_LOOP: Final = 256 * 1024  # bytes of the messages of a claim
STORED_TOGETHER: Final = 32  # messages: a few milliseconds of the event loop
CHECK_TRIES: Final = 5  # per message; each ended with an error or with the process
RECEIVED_POLL: Final = 10.0  # seconds; another node may have accepted mail
RECEIVED_PAUSE: Final = 2.0  # seconds before a retry
ALONE_FROM: Final = 2  # tries after which a message is checked alone: it may have ended the process
READING_THREADS: Final = 2  # that read messages
CHECKED_ON_LOOP: Final = 4 * 1024  # bytes, hostile ones in 4 ms; a thread would cost more than it saves

T = TypeVar("T")

log = get_logger("inbound")
_stored = partial(until_stored, log=log, failure="received mail not stored")


class Receiver(Struct):
    store: Store
    env: Environment
    resolver: Resolver
    links: ReceivedLinks
    _checked: dict[str, QueuedReceived] = field(default_factory=dict)  # the messages being checked, by id
    _failed: set[str] = field(default_factory=set)  # messages whose check raised an error in this process
    _after: str = ""  # the last turn
    _is_ready: bool = False
    _threads: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, READING_THREADS))

    async def run(self) -> None:
        async with trio.open_nursery() as checking:
            while True:
                try:
                    queued = await self._next() if await self.store.engine.has_chore("feedback") else []
                    if queued:
                        await self._start(queued, checking)
                    else:
                        await self.store.received.arrived.wait(RECEIVED_POLL)
                    await trio.sleep(CLAIM_REST)
                except StorageUnavailable as refused:
                    log.warning("received mail not read: storage unavailable", reason=refused.text)
                    await trio.sleep(RECEIVED_PAUSE)

    async def _next(self) -> list[QueuedReceived]:
        """Return the next messages that have a place, in turns from the one after the last.

        A message that may have ended the process is the only one. The walk stops before it until no other is checked.
        """
        chosen: list[QueuedReceived] = []
        accounts, turns = Counter[str](), Counter[str]()
        for item in self._checked.values():
            if self._is_suspect(item):
                return []
            _take_places(item, accounts, turns)
        if (few := await self._all_queued()) is not None:
            return few
        visited = set[str]()
        for _ in range(TURNS_TRIED):
            waiting = await self.store.received.next_turn(self._after, 2 * TURN_PLACES)
            if not waiting and not self._after:
                break
            turn = waiting[0].turn if waiting else ""
            if turn in visited or turns.total() >= PLACES:
                break
            visited.add(turn)
            for item in waiting:
                if item.id in self._checked:
                    continue
                if self._is_suspect(item):
                    if not self._checked and not chosen:
                        self._after = turn
                        return [item]
                    return chosen
                if not _has_place(item, accounts, turns):
                    break
                chosen.append(item)
                _take_places(item, accounts, turns)
            self._after = turn
        return chosen

    async def _all_queued(self) -> list[QueuedReceived] | None:
        """Return all queued messages if each has a place, so that none needs a turn; one query instead of many."""
        queued = await self.store.received.queued(PLACES + 1)
        if len(queued) > PLACES or any(map(self._is_suspect, queued)):
            return None
        accounts, turns = Counter[str](), Counter[str]()
        for item in [*self._checked.values(), *(item for item in queued if item.id not in self._checked)]:
            if not _has_place(item, accounts, turns):
                return None
            _take_places(item, accounts, turns)
        return [item for item in queued if item.id not in self._checked]

    def _is_suspect(self, item: QueuedReceived) -> bool:
        return item.tries >= ALONE_FROM and item.id not in self._failed

    async def _start(self, queued: list[QueuedReceived], checking: trio.Nursery) -> None:
        if not self._is_ready:
            await self._on_thread(organizational, "example.com")  # loads the list of public suffixes: 0.1 s
            self._is_ready = True
        self._checked |= {item.id: item for item in queued}
        claimed: list[WaitingReceived] = []
        try:
            large = sum(item.size for item in queued) > CLAIMED_ON_LOOP
            claimed = await self.store.received.claim([item.id for item in queued], large=large)
        except (StorageFault, StorageUnavailable):
            raise
        except Exception as error:
            if len(queued) == 1:
                log.exception("received mail not read", error, mail_id=queued[0].id)
                await trio.sleep(RECEIVED_PAUSE)
            else:
                for item in queued:
                    await self._start([item], checking)
        finally:
            for mail_id in {item.id for item in queued} - {mail.id for mail in claimed}:
                self._checked.pop(mail_id, None)
        for at in range(0, len(claimed), STORED_TOGETHER):
            for mail in await self._check_together(claimed[at : at + STORED_TOGETHER]):
                checking.start_soon(self._check, mail)
                await trio.lowlevel.checkpoint()  # one message on each turn of the event loop

    async def _check_together(self, claimed: list[WaitingReceived]) -> list[WaitingReceived]:
        """Check and store the small messages whose lookups are cached; return those that need a task of their own.

        Among them those that failed: their task logs why.
        """
        ready, others = list[tuple[WaitingReceived, CheckedMessage]](), list[WaitingReceived]()
        for mail in claimed:
            checked: CheckedMessage | None = None
            if len(mail.mime) <= CHECKED_ON_LOOP and mail.tries <= CHECK_TRIES:
                try:
                    checked = await self._checked_message(mail, _at_once, authenticate_from_cache)
                except StorageFault:
                    raise
                except Exception:
                    checked = None
            if checked is None:
                others.append(mail)
            else:
                ready.append((mail, checked))
        if not ready:
            return others
        try:
            stored = await _stored(partial(self.store.received.finish, ready))
        except StorageFault:
            raise
        except Exception:
            return claimed
        for (mail, checked), is_stored in zip(ready, stored, strict=True):
            del self._checked[mail.id]
            if is_stored:
                _note(mail, checked.facts.authentication)
        return others

    async def _check(self, mail: WaitingReceived) -> None:
        try:
            await self._finish(mail)
            self._failed.discard(mail.id)
        except StorageFault:
            raise
        except Exception as error:
            self._failed.add(mail.id)
            log.exception("received mail not read", error, mail_id=mail.id)
            await trio.sleep(RECEIVED_PAUSE)
        finally:
            del self._checked[mail.id]
            self.store.received.arrived.set()

    async def _finish(self, mail: WaitingReceived) -> None:
        run = _at_once if len(mail.mime) <= CHECKED_ON_LOOP else self._on_thread
        if mail.tries > CHECK_TRIES:
            log.error("received mail stored unread: reading failed repeatedly", mail_id=mail.id, bytes=len(mail.mime))
        checked = await self._checked_message(mail, run, authenticate)
        assert checked is not None  # noqa: S101 - `authenticate` always has a result
        if any(await _stored(partial(self.store.received.finish, [(mail, checked)]))):
            _note(mail, checked.facts.authentication)

    async def _checked_message(
        self, mail: WaitingReceived, run: OnThread, check: Callable[..., Awaitable[Authentication | None]]
    ) -> CheckedMessage | None:
        envelope, checks = mail.envelope, unchecked("reading failed repeatedly")
        if mail.tries > CHECK_TRIES:
            content = _read(envelope, b"")[0]
        else:
            content, signatures = await run(_read, envelope, mail.mime)
            claims = SenderChecks(envelope, signatures, content.from_domains)
            if (result := await check(self.resolver, claims, self.env.now(), run)) is None:
                return None
            checks = result
        answers = await _stored(partial(self.store.received.answered, mail.account_id, content.answered_ids))
        facts = ReceivedFacts(checks, answers)
        event_id, size = self.env.identifier("evt"), len(mail.mime)
        described = partial(received_data, self.links, mail.account_id, mail.id, envelope, size, content, facts)
        return CheckedMessage(
            sender=content.sender[:SHOWN_FIELD],
            subject=content.subject[:SHOWN_FIELD],
            auto_submitted=content.auto_submitted,
            attachments=len(content.attachments),
            facts=facts,
            event_id=event_id,
            event=await run(lambda: received_envelope(event_id, mail.received_at, described(self.env.now()))),
        )

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await trio.to_thread.run_sync(partial(work, *arguments), limiter=self._threads)


def _read(envelope: ReceivedEnvelope, mime: bytes) -> tuple[ReceivedContent, list[ReceivedSignature]]:
    content = read_received(mime, recipients=envelope.recipients, null_sender=not envelope.sender)
    return content, signatures_of(mime)


async def _at_once(work: Callable[..., T], *arguments: object) -> T:
    await trio.lowlevel.checkpoint()  # other tasks run before each step
    return work(*arguments)


def _places(item: QueuedReceived) -> int:
    return 1 + item.size // BYTES_PER_PLACE


def _take_places(item: QueuedReceived, accounts: Counter[str], turns: Counter[str]) -> None:
    accounts[turn_account(item.turn)] += _places(item)
    turns[item.turn] += _places(item)


def _has_place(item: QueuedReceived, accounts: Counter[str], turns: Counter[str]) -> bool:
    free = PLACES - turns.total(), ACCOUNT_PLACES - accounts[turn_account(item.turn)], TURN_PLACES - turns[item.turn]
    return _places(item) <= min(free)


def _note(mail: WaitingReceived, checks: Authentication) -> None:
    results = {"spf": checks.spf.result.value, "dkim": checks.dkim_result.value, "dmarc": checks.dmarc.result.value}
    RECEIVED.add(results["dmarc"])
    log.info("received mail stored", inbound_id=mail.id, account_id=mail.account_id, bytes=len(mail.mime), **results)
    if MESSAGE_LOG.keep:
        MESSAGE_LOG.note("received", inbound_id=mail.id, recipients=list(mail.envelope.recipients), **results)
