"""One mail transaction: MAIL, RCPT, DATA, the message, and a verdict for every recipient. No I/O.

With PIPELINING (RFC 2920) everything up to DATA goes out in one write, else one command at a time. A reply to MAIL,
DATA or the end of data concerns all recipients that are still open, one to RCPT that recipient. The rules, by what is
answered and the first digit of the answer, stand in the table at the end; an answer that is not in it is a fault. The
payload is checked for lone line ends and dot-stuffed once.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from appliance.deliver.smtp.protocol import (
    NOTE,
    Cause,
    SmtpExchange,
    Stage,
    Verdict,
    answered,
    local,
    mail_command,
    rcpt_command,
)
from appliance.deliver.smtp.reply import Capabilities, Reply, ReplyReader
from appliance.message.characters import has_lone_line_end, replaced

JOINED_BYTES = 256 * 1024  # up to here one more copy is cheaper than one more system call
LONE_DOT = b".\r\n"  # RFC 5321 4.1.1.4: the CRLF before it ends the message's own last line, if there is one
# Commands in one write. Their answers must fit into the buffers between us and the server, or each side waits for the
# other to read (RFC 2920 3.1): a hundred long ones are about 10 KB.
PIPELINED_COMMANDS = 100

_NO_SMTPUTF8 = "no SMTPUTF8 at the server, and"


class LoneLineEnd(ValueError):
    """A CR or LF that is not part of a CRLF: to some servers an end of line, to others not, and so a way to smuggle."""


class Payload(Struct, frozen=True, weakref=True):
    """A message ready for DATA; make it once and send it to as many servers as need be."""

    parts: tuple[bytes, ...]
    size: int  # bytes of the message itself, as RFC 1870 6.1 counts them
    eight_bit: bool
    eight_bit_header: bool = False

    def __repr__(self) -> str:
        """Without the message: what a customer wrote stays out of logs and tracebacks."""
        return f"Payload(size={self.size}, eight_bit={self.eight_bit})"


def prepare(message: bytes) -> Payload:
    """Check and dot-stuff (RFC 5321 4.5.2) a message with CRLF line ends; one copy, or none when no line has a dot."""
    if has_lone_line_end(message):
        raise LoneLineEnd("a lone CR or LF in a message on its way out")
    end = LONE_DOT if message.endswith(b"\r\n") else b"\r\n" + LONE_DOT
    stuffed = b"".join(replaced(message, b"\r\n.", b"\r\n..")) if b"\r\n." in message else message
    first = (b".",) if message.startswith(b".") else ()
    parts = (*first, stuffed, end)
    if len(stuffed) <= JOINED_BYTES:
        parts = (b"".join(parts),)
    eight_bit = not message.isascii()
    eight_bit_header = eight_bit and not message[: message.find(b"\r\n\r\n")].isascii()
    return Payload(parts, len(message), eight_bit, eight_bit_header)


class MailTransaction(NamedTuple):
    sender: str  # "" for the null reverse-path
    recipients: tuple[str, ...]
    payload: Payload
    needs_smtputf8: bool = False  # for its header; what an address needs is seen from the address
    unencodable: str = ""  # why it cannot be encoded for a server that does not take it as it is, if that was tried

    def fits(self, offered: Capabilities) -> bool:
        """Whether a server takes the message itself as it is."""
        eight_bit = offered.eight_bit or not self.payload.eight_bit
        return eight_bit and (offered.smtputf8 or not self.needs_smtputf8)


class _Command(NamedTuple):
    stage: Stage
    line: str
    recipient: int = -1  # its number, where the answer concerns only one


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
        self.needs_reset = reset  # whether the server may still be in the middle of a transaction
        self._transaction, self._offered = transaction, offered
        self._verdicts: list[Verdict | None] = [None] * len(transaction.recipients)
        self._open = len(transaction.recipients)  # how many have no verdict yet
        self._to_say: list[_Command] = []
        self._awaited: deque[_Command] = deque()
        self._leave_out_what_cannot_go()
        if self._open:
            self._plan(reset)
            self._go_on(Stage.MAIL)

    @property
    def awaiting(self) -> Stage | None:
        """What the next reply will answer; None once every recipient has a verdict and nothing is outstanding."""
        return self._awaited[0].stage if self._awaited else None

    def verdicts(self) -> tuple[Verdict, ...]:
        """In the order of the recipients, once it is over."""
        return tuple(verdict for verdict in self._verdicts if verdict is not None)

    # ---- before anything is said

    def _leave_out_what_cannot_go(self) -> None:
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

    def _go_on(self, stage: Stage) -> None:
        """Every command is answered: send the next ones, if any recipient is still open."""
        if not self._open or not self._to_say or self._unasked(stage):
            return
        count = PIPELINED_COMMANDS if self._offered.pipelining else 1
        batch, self._to_say = self._to_say[:count], self._to_say[count:]
        self._awaited.extend(batch)
        self._say([command.line for command in batch])
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
            self._go_on(stage)

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
        """Go-ahead for DATA. Should every recipient have been refused already, RFC 2920 3.1 wants a lone dot."""
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
        """The end of data ends the transaction, whatever the answer (RFC 5321 4.1.1.4): no RSET is needed."""
        self.needs_reset = False
        self._settle_all(answered(Stage.END_OF_DATA, reply))


_RULES: dict[Stage, dict[int, Callable[[Sending, int, Reply], None]]] = {
    Stage.RESET: {2: Sending._do_nothing, 4: Sending._cannot_reset, 5: Sending._cannot_reset},
    Stage.MAIL: {2: Sending._do_nothing, 4: Sending._refuse_all, 5: Sending._refuse_all},
    Stage.RCPT: {2: Sending._do_nothing, 4: Sending._refuse_one, 5: Sending._refuse_one},
    Stage.DATA: {3: Sending._send_message, 4: Sending._refuse_all, 5: Sending._refuse_all},
    Stage.END_OF_DATA: {2: Sending._finish, 4: Sending._finish, 5: Sending._finish},
}
