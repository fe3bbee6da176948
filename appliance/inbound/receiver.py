"""Checks the senders of received mail, and stores each message with the posts of its event.

The queue is that of feedback; mail takes turns by account and client network. Several messages are checked at once: it
waits for the DNS servers of senders. A turn and an account have a few of these places, so that mail with slow DNS
does not delay others'. A message that cannot be read, or ended the process, is stored without content rather than lost.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio
from msgspec import Struct, field

from appliance.concurrency.wake import until_stored
from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.inbound.authentication import authenticate, unchecked
from appliance.intake.received import received_data
from appliance.keys.received_links import ReceivedLinks
from appliance.message.received import SHOWN_FIELD, ReceivedContent, read_received
from appliance.model.received import Authentication, ReceivedFacts, WaitingReceived
from appliance.model.received_event import received_envelope
from appliance.store import Store
from appliance.store.received import CheckedMessage, turn_account
from appliance.telemetry.log import MESSAGE_LOG, get_logger
from appliance.telemetry.metrics import RECEIVED

MESSAGES_CHECKED: Final = 16  # messages being checked
ACCOUNT_AT_ONCE: Final = 8
TURN_AT_ONCE: Final = 4
TURNS_TRIED: Final = 64  # for the next mail, before others are let run
CHECK_TRIES: Final = 5  # per message; each ended with an error or with the process
RECEIVED_POLL: Final = 10.0  # seconds; another node may have accepted mail
RECEIVED_PAUSE: Final = 2.0  # seconds before a retry
READING_THREADS: Final = 2  # that read messages

T = TypeVar("T")

log = get_logger("inbound")
_stored = partial(until_stored, log=log, failure="received mail not stored")


class Receiver(Struct):
    store: Store
    env: Environment
    resolver: Resolver
    links: ReceivedLinks
    _checked: dict[str, str] = field(default_factory=dict)  # turns of the messages being checked, by id
    _after: str = ""  # the last turn
    _threads: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, READING_THREADS))

    async def run(self) -> None:
        async with trio.open_nursery() as checking:
            while True:
                try:
                    if await self.store.engine.has_chore("feedback"):
                        while len(self._checked) < MESSAGES_CHECKED and (mail_id := await self._next()) is not None:
                            checking.start_soon(self._check, mail_id)
                    await self.store.received.arrived.wait(RECEIVED_POLL)
                except StorageUnavailable as refused:
                    log.warning("received mail not read: storage unavailable", reason=refused.text)
                    await trio.sleep(RECEIVED_PAUSE)

    async def _next(self) -> str | None:
        """Take the next message: of the turn after the last one that may have a place."""
        accounts = Counter(map(turn_account, self._checked.values()))
        wrapped = self._after == ""
        for _ in range(TURNS_TRIED):
            waiting = await self.store.received.next_turn(self._after, TURN_AT_ONCE + 1)
            if not waiting and wrapped:
                return None
            if not waiting:
                self._after, wrapped = "", True
                continue
            turn = waiting[0][0]
            account_id = turn_account(turn)
            if accounts[account_id] >= ACCOUNT_AT_ONCE:
                self._after = f"{account_id}!"  # after all turns of the account: `!` follows the space in them
                continue
            self._after = turn
            unchecked_ids = [mail_id for _, mail_id in waiting if mail_id not in self._checked]
            if unchecked_ids and sum(item == turn for item in self._checked.values()) < TURN_AT_ONCE:
                self._checked[unchecked_ids[0]] = turn
                return unchecked_ids[0]
        return None

    async def _check(self, mail_id: str) -> None:
        try:
            mail = await self.store.received.claim(mail_id)
            if mail is not None:
                await self._finish(mail)
        except StorageFault:
            raise
        except Exception as error:
            log.exception("received mail not read", error, mail_id=mail_id)
            await trio.sleep(RECEIVED_PAUSE)
        finally:
            del self._checked[mail_id]
            self.store.received.arrived.set()

    async def _finish(self, mail: WaitingReceived) -> None:
        envelope = mail.envelope
        read: Callable[[bytes], ReceivedContent] = partial(
            read_received, recipients=envelope.recipients, null_sender=not envelope.sender
        )
        if mail.tries <= CHECK_TRIES:
            content = await self._on_thread(read, mail.mime)
            checks = await authenticate(self.resolver, envelope, mail.mime, self.env.now(), self._on_thread)
        else:
            log.error("received mail stored unread: reading failed repeatedly", mail_id=mail.id, bytes=len(mail.mime))
            content, checks = read(b""), unchecked("reading failed repeatedly")
        answers = await _stored(partial(self.store.received.answered, mail.account_id, content.answered_ids))
        facts = ReceivedFacts(checks, answers)
        event_id, size = self.env.identifier("evt"), len(mail.mime)
        described = partial(received_data, self.links, mail.account_id, mail.id, envelope, size, content, facts)
        checked = CheckedMessage(
            sender=content.sender[:SHOWN_FIELD],
            subject=content.subject[:SHOWN_FIELD],
            auto_submitted=content.auto_submitted,
            attachments=len(content.attachments),
            facts=facts,
            event_id=event_id,
            event=await self._on_thread(
                lambda: received_envelope(event_id, mail.received_at, described(self.env.now()))
            ),
        )
        if await _stored(partial(self.store.received.finish, mail, checked)):
            _note(mail, checks)

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await trio.to_thread.run_sync(partial(work, *arguments), limiter=self._threads)


def _note(mail: WaitingReceived, checks: Authentication) -> None:
    results = {"spf": checks.spf.result.value, "dkim": checks.dkim_result.value, "dmarc": checks.dmarc.result.value}
    RECEIVED.add(results["dmarc"])
    log.info("received mail stored", inbound_id=mail.id, account_id=mail.account_id, bytes=len(mail.mime), **results)
    if MESSAGE_LOG.keep:
        MESSAGE_LOG.note("received", inbound_id=mail.id, recipients=list(mail.envelope.recipients), **results)
