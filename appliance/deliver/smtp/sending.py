"""The two exchanges of a session: its opening (EHLO, STARTTLS, AUTH) and one mail transaction. No I/O.

    GREETING ──> EHLO ──> STARTTLS ──> HANDSHAKE ──> EHLO ──> AUTH … ──> READY
                   └──> HELO

The opening skips STARTTLS without a TLS plan and AUTH without credentials; implicit TLS begins with HANDSHAKE. A
transaction sends everything up to DATA in one write with PIPELINING (RFC 2920), else one command at a time. A reply to
MAIL, DATA or the end of data settles all open recipients, a reply to RCPT one. In both, a reply without a rule for its
first digit ends the session.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from appliance.deliver.smtp.protocol import (
    CLIENT,
    EVERYONE,
    NOTE,
    Capabilities,
    Cause,
    RelayCredentials,
    Reply,
    ReplyReader,
    ResultKind,
    SmtpExchange,
    Stage,
    Verdict,
    answered,
    base64,
    capabilities,
    hello_command,
    local,
    mail_command,
    plain_secret,
    rcpt_command,
    without_tokens,
)
from appliance.deliver.smtp.tls import TlsPlan
from appliance.message.characters import has_dot_line, has_lone_line_end, replaced

MASK = "[secret]"


class OpeningState(Enum):
    """A state of the opening, with the stage that the awaited reply belongs to."""

    GREETING = 1, Stage.GREETING
    EHLO = 2, Stage.EHLO
    HELO = 3, Stage.EHLO
    STARTTLS = 4, Stage.STARTTLS
    HANDSHAKE = 5, None  # the driver's turn
    AUTH_PLAIN = 6, Stage.AUTH
    AUTH_PLAIN_ASKED = 7, Stage.AUTH
    AUTH_LOGIN = 8, Stage.AUTH
    AUTH_USERNAME = 9, Stage.AUTH
    AUTH_PASSWORD = 10, Stage.AUTH
    READY = 11, None
    ENDED = 12, None


class Opening(SmtpExchange):
    def __init__(
        self,
        hello_name: str,
        replies: ReplyReader,
        clock: Callable[[], float],
        tls: TlsPlan | None = None,
        credentials: RelayCredentials | None = None,
    ) -> None:
        super().__init__(replies, clock)
        self.state = OpeningState.HANDSHAKE if tls is not None and tls.implicit else OpeningState.GREETING
        self.capabilities = Capabilities()
        self._hello_name, self._tls, self._credentials = hello_name, tls, credentials
        self._encrypted = self._refused = False  # `_refused`: the server refused STARTTLS
        hello_command("EHLO", hello_name)  # raises for an unsafe name before anything is sent

    @property
    def awaiting(self) -> Stage | None:
        stage: Stage | None = self.state.value[1]
        return stage

    def secured(self, remark: str) -> None:
        """The handshake is done: forget the extensions announced before it and send EHLO again (RFC 3207 4.2)."""
        self._encrypted = True
        self.capabilities = Capabilities()
        self.transcript.add(NOTE, remark)
        if self._tls is not None and self._tls.implicit:
            self.state = OpeningState.GREETING
        else:
            self._say_hello(OpeningState.EHLO)

    def not_secured(self, cause: Cause, text: str) -> None:
        self._fail_at(Stage.STARTTLS, cause, text)

    def _answer(self, reply: Reply) -> None:
        stage, login, tls = self.awaiting, self._credentials, self._tls
        if stage is None or self._unasked(stage):
            return
        match self.state, reply.family:
            case OpeningState.GREETING, 2:
                self._say_hello(OpeningState.EHLO)
            case OpeningState.EHLO, 2:
                self.capabilities = capabilities(reply)
                self._continue()
            case OpeningState.EHLO, 5:  # RFC 5321 3.2
                self._say_hello(OpeningState.HELO)
            case OpeningState.HELO, 2:
                self._continue()
            case OpeningState.STARTTLS, 2:
                self.state = OpeningState.HANDSHAKE
            case OpeningState.STARTTLS, 4 | 5 if tls is not None and tls.demanded:
                text = f"the server refused STARTTLS: {reply.shown}"
                self._end(Verdict(ResultKind.LOST, stage, text, reply, Cause.TLS_NOT_OFFERED))
            case OpeningState.STARTTLS, 4 | 5:  # RFC 3207 4.1 lets the client decide whether to continue
                self._refused = True
                self._continue()
            case ((OpeningState.AUTH_PLAIN | OpeningState.AUTH_PLAIN_ASKED | OpeningState.AUTH_PASSWORD), 2):
                self.state = OpeningState.READY
            case OpeningState.AUTH_PLAIN, 3 if login:  # it overlooked the initial response (RFC 4954 4)
                self._ask(OpeningState.AUTH_PLAIN_ASKED, plain_secret(login), MASK)
            case OpeningState.AUTH_LOGIN, 3 if login:
                self._ask(OpeningState.AUTH_USERNAME, base64(login.username), MASK)
            case OpeningState.AUTH_USERNAME, 3 if login:
                self._ask(OpeningState.AUTH_PASSWORD, base64(login.password), MASK)
            case _:
                self._end(answered(stage, reply))

    def _end(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.state = OpeningState.ENDED

    def _ask(self, state: OpeningState, line: str, shown: str | None = None) -> None:
        self.state = state
        self._say(line, shown)

    def _say_hello(self, state: OpeningState) -> None:
        self._ask(state, hello_command(state.name, self._hello_name))

    def _continue(self) -> None:
        """After EHLO: encrypt, log in, or be ready."""
        tls = None if self._encrypted or self._refused else self._tls
        if tls is not None and self.capabilities.starttls:
            self._ask(OpeningState.STARTTLS, "STARTTLS")
        elif tls is not None and tls.demanded:
            self._fail_at(Stage.STARTTLS, Cause.TLS_NOT_OFFERED, "the server does not offer STARTTLS")
        elif self._credentials is None:
            self.state = OpeningState.READY
        elif not self._encrypted:
            self._fail_at(Stage.AUTH, Cause.TLS_NOT_OFFERED, "credentials are not sent without TLS")
        elif "PLAIN" in self.capabilities.auth:
            secret = plain_secret(self._credentials)
            self._ask(OpeningState.AUTH_PLAIN, f"AUTH PLAIN {secret}", f"AUTH PLAIN {MASK}")
        elif "LOGIN" in self.capabilities.auth:
            self._ask(OpeningState.AUTH_LOGIN, "AUTH LOGIN")
        else:
            self._fail_at(Stage.AUTH, Cause.AUTH_NOT_OFFERED, "the server offers neither AUTH PLAIN nor AUTH LOGIN")


# ---- the transaction

JOINED_BYTES = 256 * 1024  # up to this size one more copy is cheaper than one more system call
LONE_DOT = b".\r\n"  # RFC 5321 4.1.1.4: the CRLF before it ends the message's own last line, if there is one
# Commands in one write. Their replies must fit into the buffers between us and the server, or each side waits for the
# other to read (RFC 2920 3.1): a hundred long ones are about 10 KB.
PIPELINED_COMMANDS = 100
_NO_SMTPUTF8 = "no SMTPUTF8 at the server, and"


class LoneLineEnd(ValueError):
    """A CR or LF outside a CRLF. Some servers take it for a line end, so it could smuggle in a second message."""


class Payload(Struct, frozen=True, weakref=True):
    parts: tuple[bytes, ...]
    size: int  # bytes of the message itself, as RFC 1870 6.1 counts them
    eight_bit: bool
    eight_bit_header: bool = False

    def __repr__(self) -> str:
        """Without the message, which must stay out of logs and tracebacks."""
        return f"Payload(size={self.size}, eight_bit={self.eight_bit})"


def prepare(message: bytes, signature: bytes = b"", *, is_checked: bool = False) -> Payload:
    """Check and dot-stuff (RFC 5321 4.5.2) a message with CRLF line ends, after its signature.

    A large message is copied only if a line begins with a dot. `is_checked`: its line ends were checked before.
    """
    if len(message) <= JOINED_BYTES:
        message, signature, is_checked = signature + message, b"", False
    if has_lone_line_end(signature) or not (is_checked or not has_lone_line_end(message)):
        raise LoneLineEnd("a lone CR or LF in a message on its way out")
    end = LONE_DOT if message.endswith(b"\r\n") else b"\r\n" + LONE_DOT
    first, stuffed = b"", message
    if has_dot_line(message):
        first = b"." if message.startswith(b".") else b""
        stuffed = b"".join(replaced(message, b"\r\n.", b"\r\n.."))
    head = signature + first
    parts: tuple[bytes, ...] = (head, stuffed, end) if head else (stuffed, end)
    if len(stuffed) <= JOINED_BYTES:
        parts = (b"".join(parts),)
    eight_bit = not message.isascii()
    eight_bit_header = eight_bit and not message[: message.find(b"\r\n\r\n")].isascii()
    return Payload(parts, len(signature) + len(message), eight_bit, eight_bit_header)


class MailTransaction(NamedTuple):
    sender: str  # "" for the null reverse-path
    recipients: tuple[str, ...]
    payload: Payload
    needs_smtputf8: bool = False  # for its header; an address shows its own need
    unencodable: str = ""  # why the message cannot be re-encoded in seven bits, if that was tried

    def fits(self, offered: Capabilities) -> bool:
        """Whether the server accepts the message without re-encoding."""
        eight_bit = offered.eight_bit or not self.payload.eight_bit
        return eight_bit and (offered.smtputf8 or not self.needs_smtputf8)


class _Command(NamedTuple):
    stage: Stage
    line: str
    recipient: int = EVERYONE  # the number of the recipient in RCPT


class Sending(SmtpExchange):
    def __init__(
        self,
        transaction: MailTransaction,
        offered: Capabilities,
        replies: ReplyReader,
        clock: Callable[[], float],
        *,
        reset: bool = False,
    ) -> None:
        super().__init__(replies, clock)
        self.needs_reset = reset  # the server may still be in the middle of a transaction
        self._transaction, self._offered = transaction, offered
        self._verdicts: list[Verdict | None] = [None] * len(transaction.recipients)
        self._open = len(transaction.recipients)  # recipients without a verdict
        self._to_say: list[_Command] = []
        self._awaited: deque[_Command] = deque()
        self._settle_unsupported()
        if self._open:
            self._plan(reset)
            self._send_next(Stage.MAIL)

    @property
    def awaiting(self) -> Stage | None:
        return self._awaited[0].stage if self._awaited else None

    @property
    def _recipient(self) -> int:
        return self._awaited[0].recipient

    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self._verdicts if verdict is not None)

    def _settle_unsupported(self) -> None:
        """Give a verdict to recipients whose mail needs an extension that the server lacks."""
        mail, offered = self._transaction, self._offered
        if offered.size_limit is not None and mail.payload.size > offered.size_limit:
            text = f"the message has {mail.payload.size} bytes, the server takes {offered.size_limit}"
            self._settle_all(local(Cause.TOO_LARGE, text))
            return
        if not offered.smtputf8:
            for number, address in enumerate(mail.recipients):
                if not address.isascii():
                    self._settle(number, local(Cause.NO_SMTPUTF8, f"{_NO_SMTPUTF8} the recipient's address needs it"))
            if not mail.sender.isascii():
                self._settle_all(local(Cause.NO_SMTPUTF8, f"{_NO_SMTPUTF8} the sender's address needs it"))
        if mail.fits(offered):
            return
        why = f": {mail.unencodable}" if mail.unencodable else ""
        if mail.needs_smtputf8 and not offered.smtputf8:
            self._settle_all(local(Cause.NO_SMTPUTF8, f"{_NO_SMTPUTF8} the header of the message needs it{why}"))
        text = f"the message has 8-bit text, the server has no 8BITMIME{why}"
        self._settle_all(local(Cause.NO_8BITMIME, text))

    def _plan(self, reset: bool) -> None:
        mail, offered = self._transaction, self._offered
        if reset:
            self._to_say.append(_Command(Stage.RESET, "RSET"))
        parameters = f" SIZE={mail.payload.size}" if offered.size else ""
        if mail.payload.eight_bit:
            parameters += " BODY=8BITMIME"
        ascii_only = mail.sender.isascii() and all(map(str.isascii, mail.recipients))
        if offered.smtputf8 and (mail.needs_smtputf8 or not ascii_only):
            parameters += " SMTPUTF8"
        self._to_say.append(_Command(Stage.MAIL, mail_command(mail.sender, parameters)))
        for number, address in enumerate(mail.recipients):
            if self._verdicts[number] is None:
                self._to_say.append(_Command(Stage.RCPT, rcpt_command(address), number))
        self._to_say.append(_Command(Stage.DATA, "DATA"))

    # ---- commands and replies

    def _send_next(self, stage: Stage) -> None:
        """Send the next commands, if a recipient is still open; the server has replied to all earlier ones."""
        if not self._open or not self._to_say or self._unasked(stage):
            return
        count = PIPELINED_COMMANDS if self._offered.pipelining else 1
        batch, self._to_say = self._to_say[:count], self._to_say[count:]
        self._awaited.extend(batch)
        self._output.append("".join([f"{command.line}\r\n" for command in batch]).encode())
        for command in batch:
            self.transcript.add(CLIENT, without_tokens(command.line), command.recipient)
        self.needs_reset = True

    def _answer(self, reply: Reply) -> None:
        stage, _, number = self._awaited[0]
        rule = _RULES[stage].get(reply.family)
        if rule is None:
            self._end(answered(stage, reply))
            return
        rule(self, number, reply)
        if self._awaited:  # unless the rule ended the session
            self._awaited.popleft()
        if not self._awaited:
            self._send_next(stage)

    def _end(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._settle_all(verdict)
        self._awaited.clear()
        self._to_say.clear()

    def _settle(self, number: int, verdict: Verdict) -> None:
        if self._verdicts[number] is None:
            self._verdicts[number] = verdict
            self._open -= 1

    def _settle_all(self, verdict: Verdict) -> None:
        if self._open:
            self._verdicts = [known or verdict for known in self._verdicts]
            self._open = 0

    # ---- the rules

    def _do_nothing(self, number: int, reply: Reply) -> None:
        pass

    def _cannot_reset(self, number: int, reply: Reply) -> None:
        self.fail(Cause.PROTOCOL_FAULT, f"RSET was refused: {reply.shown}")

    def _refuse_all(self, number: int, reply: Reply) -> None:
        self._settle_all(answered(self._awaited[0].stage, reply))

    def _refuse_one(self, number: int, reply: Reply) -> None:
        self._settle(number, answered(Stage.RCPT, reply))

    def _send_message(self, number: int, reply: Reply) -> None:
        """Send the message after a 354; a lone dot if every recipient has a verdict by now (RFC 2920 3.1)."""
        if self._unasked(Stage.DATA):
            return
        self._awaited.append(_Command(Stage.END_OF_DATA, "."))
        if self._open:
            self._output.extend(self._transaction.payload.parts)
            self.transcript.add(NOTE, f"message of {self._transaction.payload.size} bytes")
        else:
            self._output.append(LONE_DOT)
            self.transcript.add(NOTE, "no recipient left: a lone dot")

    def _finish(self, number: int, reply: Reply) -> None:
        """Any reply to the end of data ends the transaction (RFC 5321 4.1.1.4): no RSET is needed."""
        self.needs_reset = False
        self._settle_all(answered(Stage.END_OF_DATA, reply))


_RULES: dict[Stage, dict[int, Callable[[Sending, int, Reply], None]]] = {
    Stage.RESET: {2: Sending._do_nothing, 4: Sending._cannot_reset, 5: Sending._cannot_reset},
    Stage.MAIL: {2: Sending._do_nothing, 4: Sending._refuse_all, 5: Sending._refuse_all},
    Stage.RCPT: {2: Sending._do_nothing, 4: Sending._refuse_one, 5: Sending._refuse_one},
    Stage.DATA: {3: Sending._send_message, 4: Sending._refuse_all, 5: Sending._refuse_all},
    Stage.END_OF_DATA: {2: Sending._finish, 4: Sending._finish, 5: Sending._finish},
}
