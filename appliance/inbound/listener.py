"""The listener for feedback: accepts bounces, complaints, unsubscriptions and reports by SMTP, and nothing else.

A recipient is a token that is valid at its return path, which its MAC decides without the database; or `fbl`, `dmarc`,
`tlsrpt`, `postmaster` or `abuse` at the return path of a domain that is registered here. All others are refused at
RCPT: nothing is relayed, and no mail is accepted that would have to be sent back. Any sender is accepted, also none. A
message is on disk before its 250. The server is that of submission, with its limits; guesses end with its limit of
errors. A client network over its rate is refused at MAIL, a token, address or account over its rate, or without room in
the queue, at RCPT: see `rates.py`.
"""

from collections.abc import Callable
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
from appliance.inbound.rates import FeedbackRates, address_shares, network_share
from appliance.intake.accept import MessageIntake
from appliance.message import limits
from appliance.message.addresses import Address
from appliance.message.characters import has_lone_line_end
from appliance.message.cost import of_size
from appliance.message.submitted_header import end_of_header
from appliance.model.accounts import Caller
from appliance.net.address_policy import client_network
from appliance.net.connection_server import KnownNetworks
from appliance.store import Store
from appliance.submission import replies
from appliance.submission.actions import Backend, FindRecipient, Submit
from appliance.submission.replies import Rejected
from appliance.submission.server import SmtpService, serve_service
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import FEEDBACK_RECIPIENTS
from appliance.tls.certificate import inbound_files

FEEDBACK_ADDRESSES: Final = 10  # of one mail; a server that has several bounces sends one mail for each
# Of a mail that is kept: more than the largest report that is read has in base64. Of a bounce this is all but the end
# of the message that it sends back, which comes last.
KEPT_BYTES: Final = 4 * MIB
FEEDBACK_MEMORY: Final = 64 * MIB  # of mail on its way in
NETWORK_MEMORY_PART: Final = 4  # mail of one client network has one part in so many of that
NAMES_CACHED: Final = 10_000
NAME_CACHED_FOR: Final = 60.0  # seconds, also for a name that is not known

NO_RELAY = replies.reply("550 5.7.1", "Only feedback about mail sent from here is taken: no relaying, no mailboxes")
NO_SUCH_TOKEN = replies.reply("550 5.1.1", "No such return path")
TOKEN_EXPIRED = replies.reply("550 5.7.1", "This address has expired; mail is taken for 30 days")
NAME_UNKNOWN = replies.reply("550 5.1.1", "No domain here has its reports sent to this name")

log = get_logger("inbound")


@dataclass(slots=True)
class FeedbackListener:
    """Which mail is taken, and where it goes."""

    env: Environment
    store: Store
    intake: MessageIntake
    return_paths: ReturnPaths
    rates: FeedbackRates
    hostname: str
    # The accounts that own a return path, by its name; empty: none does.
    _owners: TtlCache[str, tuple[str, ...]] = field(default_factory=lambda: TtlCache(NAMES_CACHED, NAME_CACHED_FOR))

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
        """Accept any sender; refuse for now while the disk is nearly full, or after too much mail of this network."""
        if not (utf8 or sender.isascii()):
            raise Rejected(replies.NEEDS_SMTPUTF8)
        try:
            self.intake.check_disk()
            self.rates.take(network, [network_share(network)])
        except PublicError as refused:
            raise Rejected(_for_now(refused)) from None
        return sender

    def check_recipient(self, network: str, _: Caller | None, text: str) -> FindRecipient:
        """Refuse an address that is wrong by itself."""
        if text.lower() == ReportAddress.POSTMASTER:  # RFC 5321 4.5.1: without a domain, it is this server's
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
        assert address is not None  # noqa: S101 - check_recipient has read it
        try:
            owners = await self._owners_of(address.domain)
            if address.token is None and not owners and not self._is_own_postmaster(address):
                return _refused("unknown", NAME_UNKNOWN)
            shares = address_shares(address, owners)
            self.rates.take(action.owner, shares)
            await self.store.feedback.check_room([network_share(action.owner), *shares])
        except PublicError as refused:
            return _refused("limited", _for_now(refused))
        FEEDBACK_RECIPIENTS.add("taken")
        local, _, domain = action.text.lower().rpartition("@")
        return Address(name="", local=local, domain=domain, text=action.text, spelling=f"{local}@{domain}")

    async def submit(self, network: str, message: Submit) -> str:
        mime = await self.intake.workers.run(network, of_size(message.size), checked_mail, message.content)
        shares = {network_share(network)}
        for text in message.recipients:
            if (address := read_address(text)) is not None:
                shares.update(address_shares(address, await self._owners_of(address.domain)))
        mail_id = await self.store.feedback.add(message.recipients, mime, shares)
        log.info("feedback received", mail_id=mail_id, recipients=len(message.recipients), bytes=message.size)
        return mail_id

    def _is_own_postmaster(self, address: FeedbackAddress) -> bool:
        return address.report is ReportAddress.POSTMASTER and address.domain == self.hostname

    async def _owners_of(self, name: str) -> tuple[str, ...]:
        owners = self._owners.get(name)
        if owners is None:
            owners = tuple(account_id for account_id, _ in await self.store.domains.of_return_path(name))
            self._owners.put(name, owners)
        return owners


def checked_mail(content: Callable[[], bytes]) -> bytes:
    """What is kept of a mail; raises Refused for one that readers could disagree about."""
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
    """A temporary reply. The code of `errors.py` for a rate, 452, means too many recipients to some servers."""
    return replies.reply("451 4.7.1" if refused.code is Code.RATE_LIMITED else refused.code.smtp, refused.text)


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
    """Take feedback until `stopping`; `started` returns the URLs of the listeners."""
    listener = FeedbackListener(
        env, store, intake, ReturnPaths(key), FeedbackRates(env), config.server.hostname.lower()
    )
    service = SmtpService(
        way="inbound",
        files=inbound_files,
        memory=FEEDBACK_MEMORY,
        owner_part=NETWORK_MEMORY_PART,
        backend_for=listener.backend_for,
        known=KnownNetworks(),
        log=log,
    )
    binds = [("smtp", bind) for bind in config.inbound.bind]
    await serve_service(config, service, binds, stopping, live, task_status=task_status)
