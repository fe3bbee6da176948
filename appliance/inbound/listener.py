"""The listener for mail that comes in: feedback, and mail for the receiving addresses of accounts.

A recipient is a valid token at its return path, checked by its MAC without the database; or `fbl`, `dmarc`, `tlsrpt`,
`postmaster` or `abuse` at the return path of a registered domain; or a receiving address. RCPT refuses all others: the
listener never relays and never sends a bounce. It accepts any sender, also none. A message is on disk before its 250,
once for the feedback addresses and once for each receiving account among its recipients.

Two limits work together, by client network, token, address and account. A rate, counted on this node, protects the
event loop and the storage from a flood. A share of the queue, counted in the store for all nodes, keeps a flood from
filling the queue while the worker is slow. Either refuses with a temporary reply, so an honest server retries.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from appliance.concurrency.fair_share import ON_LOOP
from appliance.concurrency.ttl_cache import TtlCache
from appliance.concurrency.wake import Gathering
from appliance.config.load import LiveSettings
from appliance.config.settings import Config
from appliance.config.values import MIB
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused, invalid
from appliance.feedback.return_path import FeedbackAddress, ReportAddress, ReturnPaths, TokenFault, read_address
from appliance.intake.accept import MessageIntake
from appliance.intake.limits import RequestRate
from appliance.message import limits
from appliance.message.addresses import Address, cost_of_address
from appliance.message.characters import cost_of_size, has_lone_line_end
from appliance.message.decoding import end_of_header
from appliance.model.accounts import Caller
from appliance.model.feedback import QueueShare, ShareScope
from appliance.model.received import NewReceived, ReceivedEnvelope, ReceivingAccount
from appliance.net.address_policy import client_network
from appliance.net.connection_server import KnownNetworks
from appliance.store import Store
from appliance.store.received import MailboxFull, shares_of
from appliance.submission import dialogue
from appliance.submission.content import Backend, FindRecipient, Submit
from appliance.submission.dialogue import Rejected
from appliance.submission.server import SmtpService, serve_service
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import FEEDBACK_RECIPIENTS
from appliance.tls.certificate import inbound_files

FEEDBACK_ADDRESSES: Final = 10  # per mail; servers send one mail per bounce
KEPT_BYTES: Final = 4 * MIB  # of one mail: the largest report in base64, or a bounce and the start of its message
FEEDBACK_MEMORY: Final = 64 * MIB  # of mail being received
NETWORK_MEMORY_PART: Final = 4  # one client network gets this fraction of the memory
NAMES_CACHED: Final = 10_000
NAME_CACHED_FOR: Final = 60.0  # seconds, also for an unknown name
FOREIGN_CACHED_FOR: Final = 0.5  # seconds that a domain is known to receive nothing; it may be added from a shell
# Mails a second, and at once. A relay that sends all mail returns all its bounces from one address.
RATES: Final = {
    ShareScope.NETWORK: (20.0, 200.0),
    ShareScope.ACCOUNT: (30.0, 500.0),
    ShareScope.ADDRESS: (1.0, 50.0),  # per network, so that a flood does not keep honest reports out
    ShareScope.TOKEN: (1 / 60, 20.0),  # one recipient of one message: a bounce, delays, automatic replies
    ShareScope.RECEIVED_ACCOUNT: (200.0, 2_000.0),
    ShareScope.RECEIVED_ADDRESS: (100.0, 1_000.0),
}
COMMIT_REST: Final = 0.025  # seconds between two commits of received mail, so that each is of several messages
RATE_REFUSAL: Final = "Too much mail for this address, or from your network. Try again later."

NO_RELAY = dialogue.reply("550 5.7.1", "This server receives no mail for this domain, and does not relay")
NO_MAILBOX = dialogue.reply("550 5.1.1", "No such address")
SUSPENDED = dialogue.reply("450 4.2.1", "This address receives no mail for now. Try again later.")
MAILBOX_FULL = dialogue.reply("452 4.2.2", MailboxFull().text)
NO_SUCH_TOKEN = dialogue.reply("550 5.1.1", "No such return path")
TOKEN_EXPIRED = dialogue.reply("550 5.7.1", "This address has expired; it accepts mail for 62 days")
NAME_UNKNOWN = dialogue.reply("550 5.1.1", "No domain of this server uses this name for reports")

log = get_logger("inbound")


@dataclass(slots=True)
class FeedbackListener:
    env: Environment
    store: Store
    intake: MessageIntake
    return_paths: ReturnPaths
    hostname: str
    _foreign: TtlCache[str, bool] = field(default_factory=lambda: TtlCache(NAMES_CACHED, FOREIGN_CACHED_FOR))
    # The accounts that own a return path, by its name.
    _owners: TtlCache[str, tuple[str, ...]] = field(default_factory=lambda: TtlCache(NAMES_CACHED, NAME_CACHED_FOR))
    _rates: dict[ShareScope, RequestRate] = field(init=False)
    _gathering: Gathering = field(default_factory=partial(Gathering, COMMIT_REST))

    def __post_init__(self) -> None:
        rate = partial(RequestRate, env=self.env, refusal=RATE_REFUSAL)
        self._rates = {scope: rate(per_second, burst=burst) for scope, (per_second, burst) in RATES.items()}

    def backend_for(self, address: str, _: Callable[[Caller], bool]) -> Backend:
        owner = client_network(address)
        return Backend(
            check_sender=partial(self.check_sender, owner),
            check_recipient=partial(self.check_recipient, owner),
            find_recipient=self.find_recipient,
            find_at_once=self.find_at_once,
            submit=partial(self.submit, owner, address),
            most_recipients=FEEDBACK_ADDRESSES,
            owner=owner,
        )

    def check_sender(self, network: str, _: Caller | None, sender: str, utf8: bool) -> str:
        if not (utf8 or sender.isascii()):
            raise Rejected(dialogue.NEEDS_SMTPUTF8)
        try:
            self.intake.check_disk()
            self._count(network, [QueueShare(ShareScope.NETWORK, network)])
        except PublicError as refused:
            raise Rejected(_for_now(refused)) from None
        return sender

    def check_recipient(self, network: str, _: Caller | None, text: str) -> FindRecipient:
        """Refuse an invalid token, or an address of a domain known to be foreign, without the database."""
        if text.lower() == ReportAddress.POSTMASTER:  # RFC 5321 4.5.1: without a domain, that of this server
            text = f"{text}@{self.hostname}"
        address = read_address(text)
        if address is None or address.token is None:
            if self._is_foreign(text) and (address is None or self._owners.get(address.domain) == ()):
                raise _unknown(address)
            return FindRecipient(network, text)
        checked = self.return_paths.check(address.token, address.domain, self.env.now())
        if checked is TokenFault.EXPIRED:
            raise _refused("expired", TOKEN_EXPIRED)
        if checked is TokenFault.FORGED:
            raise _refused("forged", NO_SUCH_TOKEN)
        return FindRecipient(network, text)

    def find_at_once(self, action: FindRecipient) -> Address | Rejected | PublicError | None:
        if not self.store.engine.reads_at_once or cost_of_address(action.text) > ON_LOOP:
            return None
        try:
            self.find_recipient(action).send(None)
        except StopIteration as done:
            result: Address | Rejected | PublicError = done.value
            return result
        raise RuntimeError("the look-up of a recipient waited")

    async def find_recipient(self, action: FindRecipient) -> Address | Rejected | PublicError:
        address = read_address(action.text)
        try:
            owners = () if address is None else await self._owners_of(address.domain)
            if address is None or (address.token is None and not owners and not self._is_own_postmaster(address)):
                return await self._find_receiving(action, address)
            shares = address_shares(address, owners)
            self._count(action.owner, shares)
            await self.store.feedback.check_room([QueueShare(ShareScope.NETWORK, action.owner), *shares])
        except PublicError as refused:
            return _refused("limited", _for_now(refused))
        FEEDBACK_RECIPIENTS.add("taken")
        return _plain_address(action.text)

    async def _find_receiving(self, action: FindRecipient, feedback: FeedbackAddress | None) -> Address | Rejected:
        mailbox = await self._parsed(action.owner, action.text)
        account = None if mailbox is None else await self._receiving(mailbox)
        if account is None or mailbox is None:
            return _unknown(feedback)
        if not account.is_known:
            return _refused("unknown", NO_MAILBOX)
        if account.suspended:
            return _refused("limited", SUSPENDED)
        if (most := self.intake.quota.bytes()) is not None and account.stored_bytes >= most:
            return _refused("limited", MAILBOX_FULL)
        shares = shares_of(action.owner, account.account_id, [_without_plus(mailbox)])
        self._count("", [share for share in shares if share.scope is not ShareScope.NETWORK])
        await self.store.feedback.check_room(shares)
        FEEDBACK_RECIPIENTS.add("received")
        return mailbox

    async def submit(self, network: str, client: str, message: Submit) -> str:
        mime = await self.intake.workers.run(network, cost_of_size(message.size), checked_mail, message.content)
        feedback, received = await self._divided(network, message.recipients)
        mail_id = ""
        if feedback:  # first: if the other part is refused, the client repeats both, and repeated feedback counts once
            mail_id = await self._submit_feedback(network, feedback, mime, message.size)
        return await self._submit_received(network, client, message, received, mime) if received else mail_id

    async def _submit_feedback(self, network: str, recipients: list[str], mime: bytes, size: int) -> str:
        shares = {QueueShare(ShareScope.NETWORK, network)}
        for text in recipients:
            if (address := read_address(text)) is not None:
                shares.update(address_shares(address, await self._owners_of(address.domain)))
        mail_id = await self.store.feedback.add(tuple(recipients), mime[:KEPT_BYTES], shares)
        log.info("feedback received", mail_id=mail_id, recipients=len(recipients), bytes=size)
        return mail_id

    async def _submit_received(
        self, network: str, client: str, message: Submit, received: dict[str, list[Address]], mime: bytes
    ) -> str:
        mails = [
            NewReceived(
                id=self.env.identifier("inb"),
                account_id=account_id,
                network=network,
                envelope=ReceivedEnvelope(
                    message.sender, tuple(box.wire for box in boxes), client, message.helo, message.secure
                ),
                shares=frozenset(shares_of(network, account_id, [_without_plus(box) for box in boxes])),
                mime=mime,
            )
            for account_id, boxes in received.items()
        ]
        await self._gathering.join()
        await self.store.received.add(mails, self.intake.quota.bytes())
        return mails[0].id

    async def _divided(self, network: str, recipients: Iterable[str]) -> tuple[list[str], dict[str, list[Address]]]:
        """Return the feedback addresses, and the receiving addresses by account."""
        feedback: list[str] = []
        received: dict[str, list[Address]] = {}
        for text in recipients:
            address = read_address(text)
            if address is not None and (address.token is not None or await self._is_feedback(address)):
                feedback.append(text)
            elif (mailbox := await self._parsed(network, text)) is not None:
                account = await self._receiving(mailbox)
                if account is not None and account.is_known:
                    received.setdefault(account.account_id, []).append(mailbox)
        if not feedback and not received:  # removed while the message was being sent
            raise Refused(Code.NOT_FOUND, "This address no longer receives mail.")
        return feedback, received

    async def _is_feedback(self, address: FeedbackAddress) -> bool:
        return bool(await self._owners_of(address.domain)) or self._is_own_postmaster(address)

    # ---- receiving addresses

    def _is_foreign(self, text: str) -> bool:
        return self._foreign.get(text.rpartition("@")[2].lower()) is not None

    async def _parsed(self, network: str, text: str) -> Address | None:
        try:
            return await self.intake.workers.run(network, cost_of_address(text), dialogue.parse_address, text)
        except Rejected:
            return None

    async def _receiving(self, mailbox: Address) -> ReceivingAccount | None:
        account = await self.store.receiving.find(mailbox.key)
        if account is None:
            self._foreign.put(mailbox.domain, True)
        return account

    # ---- limits

    def _count(self, network: str, shares: Iterable[QueueShare]) -> None:
        """Count one mail for each share with a rate; raises Refused if one is over its rate."""
        for scope, name in shares:
            if (rate := self._rates.get(scope)) is not None:
                rate.take(f"{network} {name}" if scope is ShareScope.ADDRESS else name)

    def _is_own_postmaster(self, address: FeedbackAddress) -> bool:
        return address.report is ReportAddress.POSTMASTER and address.domain == self.hostname

    async def _owners_of(self, name: str) -> tuple[str, ...]:
        owners = self._owners.get(name)
        if owners is None:
            owners = tuple(account_id for account_id, _ in await self.store.domains.of_return_path(name))
            self._owners.put(name, owners)
        return owners


def address_shares(address: FeedbackAddress, owners: Iterable[str]) -> list[QueueShare]:
    """Return the shares that mail to an address counts for, by its owner, or by its name unless it has one owner."""
    accounts = sorted(set(owners))
    owner = accounts[0] if len(accounts) == 1 else address.domain
    if address.token is not None:
        return [QueueShare(ShareScope.TOKEN, address.token), QueueShare(ShareScope.ACCOUNT, owner)]
    name = f"{address.report}@{address.domain}"
    return [QueueShare(ShareScope.ADDRESS, name), QueueShare(ShareScope.ACCOUNT_WITHOUT_TOKEN, owner)]


def checked_mail(content: Callable[[], bytes]) -> bytes:
    """Return the bytes to keep; raises Refused for mail that readers interpret differently."""
    mime = content()
    if len(mime) > limits.MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"The message is larger than {limits.MESSAGE_SIZE} bytes (10 MiB).")
    if has_lone_line_end(mime):
        raise invalid("message", "contains a bare CR or LF; end every line with CRLF")
    end = end_of_header(mime)
    if end > limits.HEADER_SIZE or mime.count(b"\r\n", 0, end) > limits.HEADER_LINES:
        raise invalid("header", f"has more than {limits.HEADER_SIZE // 1024} KiB or {limits.HEADER_LINES} lines")
    return mime


def _without_plus(mailbox: Address) -> str:
    local, _, domain = mailbox.key.rpartition("@")
    return f"{local.partition('+')[0]}@{domain}"


def _plain_address(text: str) -> Address:
    local, _, domain = text.lower().rpartition("@")
    return Address(name="", local=local, domain=domain, text=text, spelling=f"{local}@{domain}")


def _unknown(address: FeedbackAddress | None) -> Rejected:
    return _refused("other", NO_RELAY) if address is None else _refused("unknown", NAME_UNKNOWN)


def _for_now(refused: PublicError) -> bytes:
    """Return a temporary reply; 452, the usual code for a rate, means too many recipients to some servers."""
    return dialogue.reply("451 4.7.1" if refused.code is Code.RATE_LIMITED else refused.code.smtp, refused.text)


def _refused(why: str, reply: bytes) -> Rejected:
    FEEDBACK_RECIPIENTS.add(why)
    return Rejected(reply)


async def serve(
    config: Config,
    env: Environment,
    store: Store,
    intake: MessageIntake,
    key: bytes,
    stopping: trio.Event,
    live: LiveSettings | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    listener = FeedbackListener(env, store, intake, ReturnPaths(key), config.server.hostname.lower())
    service = SmtpService(
        "inbound", inbound_files, FEEDBACK_MEMORY, NETWORK_MEMORY_PART, listener.backend_for, KnownNetworks(), log
    )
    binds = [("smtp", bind) for bind in config.inbound.bind]
    await serve_service(config, service, binds, stopping, live, task_status=task_status)
