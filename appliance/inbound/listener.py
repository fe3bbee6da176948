"""The listener for feedback: takes bounces, complaints, unsubscriptions and reports by SMTP, and nothing else.

A recipient is a token that is valid at its return path, which its MAC decides without the database; or `fbl`, `dmarc`
or `tlsrpt` at the return path of a domain that is registered here. All others are refused at RCPT: nothing is relayed,
there is no mailbox, and no mail is taken that would have to be sent back. Any sender is taken, also none. A message is
on disk before its 250. The server is that of submission, with its limits; guesses end with its limit of errors.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.reload import LiveSettings
from appliance.config.settings import Config
from appliance.config.values import MIB
from appliance.errors import Code, Refused, invalid
from appliance.feedback.return_path import ReturnPaths, TokenFault, read_address
from appliance.intake.accept import MessageIntake
from appliance.message import limits
from appliance.message.addresses import Address
from appliance.message.characters import has_lone_line_end
from appliance.message.cost import of_size
from appliance.message.submitted import end_of_header
from appliance.model.mail import Caller
from appliance.net.address_policy import client_network
from appliance.net.connection_limits import KnownNetworks
from appliance.outside import Outside
from appliance.store import Store
from appliance.submission import replies
from appliance.submission.actions import Backend, FindRecipient, Submit
from appliance.submission.replies import Rejected
from appliance.submission.server import SmtpService, serve_service
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import FEEDBACK_RECIPIENTS
from appliance.tls.certificate_files import inbound_files

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

    outside: Outside
    store: Store
    intake: MessageIntake
    return_paths: ReturnPaths
    _names: TtlCache[str, bool] = field(default_factory=lambda: TtlCache(NAMES_CACHED, NAME_CACHED_FOR))

    def backend_for(self, address: str, _: Callable[[Caller], bool]) -> Backend:
        owner = client_network(address)
        return Backend(
            check_sender=self.check_sender,
            check_recipient=self.check_recipient,
            find_recipient=self.find_recipient,
            submit=partial(self.submit, owner),
            most_recipients=FEEDBACK_ADDRESSES,
            owner=owner,
        )

    def check_sender(self, _: Caller | None, sender: str, utf8: bool) -> str:
        """Any sender, as it came; refused for now while the disk is nearly full."""
        if not (utf8 or sender.isascii()):
            raise Rejected(replies.NEEDS_SMTPUTF8)
        try:
            self.intake.check_disk()
        except Refused as refused:
            raise Rejected(replies.refusal(refused)) from None
        return sender

    def check_recipient(self, _: Caller | None, text: str) -> Address | FindRecipient:
        found = read_address(text)
        if found is None:
            raise _refused("other", NO_RELAY)
        if found.token is None:
            known = self._names.get(found.domain)
            return FindRecipient("", text) if known is None else _report_address(text, known)
        checked = self.return_paths.check(found.token, found.domain, self.outside.now())
        if checked is TokenFault.EXPIRED:
            raise _refused("expired", TOKEN_EXPIRED)
        if checked is TokenFault.FORGED:
            raise _refused("forged", NO_SUCH_TOKEN)
        return _taken(text)

    async def find_recipient(self, action: FindRecipient) -> Address | Rejected | Refused:
        name = action.text.rpartition("@")[2].lower()
        try:
            known = bool(await self.store.domains.of_return_path(name))
            self._names.put(name, known)
            return _report_address(action.text, known)
        except (Rejected, Refused) as refused:
            return refused

    async def submit(self, owner: str, message: Submit) -> str:
        mime = await self.intake.workers.run(owner, of_size(message.size), checked_mail, message.content)
        mail_id = await self.store.feedback.add(message.recipients, mime)
        log.info("feedback received", mail_id=mail_id, recipients=len(message.recipients), bytes=message.size)
        return mail_id


def checked_mail(content: Callable[[], bytes]) -> bytes:
    """What is kept of a mail; raises Refused for one that readers could disagree about."""
    mime = content()
    if len(mime) > limits.MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"The message is larger than {limits.MESSAGE_SIZE} bytes (10 MiB).")
    if has_lone_line_end(mime):
        raise invalid("message", "holds a CR or LF on its own; end every line with CRLF")
    end = end_of_header(mime)
    if end > limits.HEADER_SIZE or mime.count(b"\r\n", 0, end) > limits.HEADER_LINES:
        raise invalid("header", f"has more than {limits.HEADER_SIZE // 1024} KiB or {limits.HEADER_LINES} lines")
    return mime[:KEPT_BYTES]


def _report_address(text: str, known: bool) -> Address:
    if not known:
        raise _refused("unknown", NAME_UNKNOWN)
    return _taken(text)


def _taken(text: str) -> Address:
    FEEDBACK_RECIPIENTS.add("taken")
    local, _, domain = text.lower().rpartition("@")
    return Address(name="", local=local, domain=domain, text=text, spelling=f"{local}@{domain}")


def _refused(why: str, reply: bytes) -> Rejected:
    FEEDBACK_RECIPIENTS.add(why)
    return Rejected(reply)


async def serve(
    config: Config,
    outside: Outside,
    store: Store,
    intake: MessageIntake,
    key: bytes,
    stopping: trio.Event,
    live: LiveSettings | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Take feedback until `stopping`; `started` returns the URLs of the listeners."""
    listener = FeedbackListener(outside, store, intake, ReturnPaths(key))
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
