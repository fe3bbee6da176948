"""The listener for feedback: accepts bounces, complaints, unsubscriptions and reports over SMTP, and nothing else.

A recipient is a valid token at its return path, checked by its MAC without the database; or `fbl`, `dmarc`, `tlsrpt`,
`postmaster` or `abuse` at the return path of a registered domain. RCPT refuses all others: the listener never relays
and never sends a bounce. It accepts any sender, also none. A message is on disk before its 250.

Two limits work together, by client network, token, feedback address and account. A rate, counted on this node, protects
the event loop and the storage from a flood. A share of the queue, counted in the store for all nodes, keeps a flood
from filling the queue while the worker is slow. Either refuses with a temporary reply, so an honest server retries.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.load import LiveSettings
from appliance.config.settings import Config
from appliance.config.values import MIB
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused, invalid
from appliance.feedback.return_path import FeedbackAddress, ReportAddress, ReturnPaths, TokenFault, read_address
from appliance.intake.accept import MessageIntake
from appliance.intake.limits import RequestRate
from appliance.message import limits
from appliance.message.addresses import Address
from appliance.message.characters import cost_of_size, has_lone_line_end
from appliance.message.decoding import end_of_header
from appliance.model.accounts import Caller
from appliance.model.feedback import QueueShare, ShareScope
from appliance.net.address_policy import client_network
from appliance.net.connection_server import KnownNetworks
from appliance.store import Store
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
# Mails a second, and at once. A relay that sends all mail returns all its bounces from one address.
RATES: Final = {
    ShareScope.NETWORK: (20.0, 200.0),
    ShareScope.ACCOUNT: (30.0, 500.0),
    ShareScope.ADDRESS: (1.0, 50.0),  # per network, so that a flood does not keep honest reports out
    ShareScope.TOKEN: (1 / 60, 20.0),  # one recipient of one message: a bounce, delays, automatic replies
}
RATE_REFUSAL: Final = "Too much mail for this address, or from your network. Try again later."

NO_RELAY = dialogue.reply(
    "550 5.7.1", "This server accepts only feedback about its own mail: no relaying, no mailboxes"
)
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
    # The accounts that own a return path, by its name.
    _owners: TtlCache[str, tuple[str, ...]] = field(default_factory=lambda: TtlCache(NAMES_CACHED, NAME_CACHED_FOR))
    _rates: dict[ShareScope, RequestRate] = field(init=False)

    def __post_init__(self) -> None:
        rate = partial(RequestRate, env=self.env, refusal=RATE_REFUSAL)
        self._rates = {scope: rate(per_second, burst=burst) for scope, (per_second, burst) in RATES.items()}

    def backend_for(self, address: str, _: Callable[[Caller], bool]) -> Backend:
        owner = client_network(address)
        return Backend(
            check_sender=partial(self.check_sender, owner),
            check_recipient=partial(self.check_recipient, owner),
            find_recipient=self.find_recipient,
            submit=partial(self.submit, owner),
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
        """Refuse an invalid address without the database."""
        if text.lower() == ReportAddress.POSTMASTER:  # RFC 5321 4.5.1: without a domain, that of this server
            text = f"{text}@{self.hostname}"
        address = read_address(text)
        if address is None:
            raise _refused("other", NO_RELAY)
        if address.token is None:
            if self._owners.get(address.domain) == () and not self._is_own_postmaster(address):
                raise _refused("unknown", NAME_UNKNOWN)
            return FindRecipient(network, text)
        checked = self.return_paths.check(address.token, address.domain, self.env.now())
        if checked is TokenFault.EXPIRED:
            raise _refused("expired", TOKEN_EXPIRED)
        if checked is TokenFault.FORGED:
            raise _refused("forged", NO_SUCH_TOKEN)
        return FindRecipient(network, text)

    async def find_recipient(self, action: FindRecipient) -> Address | Rejected | PublicError:
        address = read_address(action.text)
        assert address is not None  # noqa: S101 - see check_recipient
        try:
            owners = await self._owners_of(address.domain)
            if address.token is None and not owners and not self._is_own_postmaster(address):
                return _refused("unknown", NAME_UNKNOWN)
            shares = address_shares(address, owners)
            self._count(action.owner, shares)
            await self.store.feedback.check_room([QueueShare(ShareScope.NETWORK, action.owner), *shares])
        except PublicError as refused:
            return _refused("limited", _for_now(refused))
        FEEDBACK_RECIPIENTS.add("taken")
        local, _, domain = action.text.lower().rpartition("@")
        return Address(name="", local=local, domain=domain, text=action.text, spelling=f"{local}@{domain}")

    async def submit(self, network: str, message: Submit) -> str:
        mime = await self.intake.workers.run(network, cost_of_size(message.size), checked_mail, message.content)
        shares = {QueueShare(ShareScope.NETWORK, network)}
        for text in message.recipients:
            if (address := read_address(text)) is not None:
                shares.update(address_shares(address, await self._owners_of(address.domain)))
        mail_id = await self.store.feedback.add(message.recipients, mime, shares)
        log.info("feedback received", mail_id=mail_id, recipients=len(message.recipients), bytes=message.size)
        return mail_id

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
    return mime[:KEPT_BYTES]


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
