"""In charge of one client's SMTP dialogue: bytes in, replies out, and what is to be done in between. No I/O.

Rules. A line ends with CRLF. A message needs EHLO, then AUTH (under TLS), MAIL, at least one RCPT, then DATA or BDAT.
Commands may be pipelined (RFC 2920): what has come is read up to the first command that somebody has to do something
for (an `Action`), and no further until that is done; and up to `limits.TURN` of them, so that one client's commands
do not keep the event loop from the others. Whoever makes too many mistakes is told so, and is out.
"""

from collections.abc import Callable

from appliance.errors import Refused
from appliance.message.limits import MESSAGE_SIZE
from appliance.submission import commands, limits, replies
from appliance.submission.actions import House, Next, Phase, Yield
from appliance.submission.admission import Admission
from appliance.submission.content import Room
from appliance.submission.intake import BadAddress, Transaction, address, is_costly
from appliance.submission.login import Login

NAME_LENGTH = 255  # octets of the name in EHLO


class Dialogue(Admission):
    """One connection's state."""

    def __init__(self, hostname: str, house: House, room: Room, *, secure: bool, plaintext_login: bool) -> None:
        super().__init__(house, room, secure=secure, plaintext_login=plaintext_login)
        self._hostname = hostname
        self._overlong = 0  # octets thrown away of a line that is too long
        self._turn = 0  # commands read in this turn

    # ---- what the driver calls

    def greet(self) -> None:
        """The first word is ours."""
        self.out.append(replies.reply("220", f"{self._hostname} ESMTP"))

    @property
    def waiting(self) -> int:
        """Octets that have come and were not read yet."""
        return len(self._input)

    def receive(self, data: bytes) -> Next:
        """Take what has come, and read as far as possible."""
        if self.phase is Phase.OVER:
            return None
        self._input = self._input + data if self._input else data
        return self.proceed()

    def proceed(self) -> Next:
        """Read what is here, up to something that has to be done first."""
        action = self._read()
        if action is not None:
            self.phase = Phase.ACTION
        elif self.stopping:
            self.stop()
        return action

    def _read(self) -> Next:
        self._turn = 0
        while self._input:
            if self.phase is Phase.COMMAND:
                if self.stopping and not self._is_midway():
                    return None
                if self._turn >= limits.TURN:
                    return Yield()
                self._turn += 1
                action = self._read_line()
            elif self.phase is Phase.CONTENT:
                action = self._read_content()
            else:
                return None
            if action is not None:
                return action
            if self.phase is Phase.COMMAND and b"\n" not in self._input and not self._is_too_long():
                return None
        return None

    def answer(self, message_id: str | None, refused: Refused | None = None) -> None:
        """What became of the message: its id, or why not, or neither when something broke."""
        self._end_transaction()
        self.go_on()
        if message_id is not None:
            self._well_done()
            self.out.append(replies.queued(message_id))
        elif refused is not None:
            self._refuse(refused)
        else:
            self.out.append(replies.INTERNAL_ERROR)

    # ---- lines

    def _is_too_long(self) -> bool:
        return len(self._input) > self._longest()

    def _longest(self) -> int:
        if self._answer_to_login is not None:
            return limits.LOGIN_LINE
        verb = self._input[:5].upper()
        if verb == b"AUTH ":
            return limits.LOGIN_LINE
        return limits.MAIL_LINE if verb == b"MAIL " else limits.LINE

    def _read_line(self) -> Next:
        end = self._input.find(b"\n") + 1
        if not end:
            self._skip_overlong()
            return None
        longest = self._longest()
        line, self._input = self._input[:end], self._input[end:]
        if self._overlong:
            self._overlong = 0
            return self._fail(replies.LINE_TOO_LONG)
        if end > longest:
            self._answer_to_login = None
            return self._fail(replies.LINE_TOO_LONG)
        if line[-2:] != b"\r\n":
            # Where this client's lines end is anybody's guess, so there is no guessing what its next command is.
            self.goodbye(replies.NO_CRLF)
            return None
        return self._take_line(line[:-2])

    def _skip_overlong(self) -> None:
        if not self._is_too_long() and not self._overlong:
            return
        self._answer_to_login = None
        self._overlong += len(self._input)
        self._input = b""
        if self._overlong > limits.OVERLONG:
            self.goodbye(replies.LINE_TOO_LONG)

    def _take_line(self, line: bytes) -> Next:
        try:
            command = commands.read(line)
        except commands.Controls:
            self._answer_to_login = None
            return self._fail(replies.CONTROL_IN_LINE)
        except commands.NotText:
            self._answer_to_login = None
            return self._fail(replies.NOT_TEXT)
        if self._answer_to_login is not None:
            understood, self._answer_to_login = self._answer_to_login, None
            return self._answered(line.decode("utf-8"), understood)
        run = _VERBS.get(command.verb)
        if run is None:
            return self._fail(replies.NO_SUCH_COMMAND)
        if not command.argument.isascii() and command.verb not in ("MAIL", "RCPT"):
            return self._fail(replies.NOT_TEXT)
        return run(self, command.argument)

    # ---- small commands

    def _helo(self, argument: str) -> Next:
        return self._greeted(argument, extended=False)

    def _ehlo(self, argument: str) -> Next:
        return self._greeted(argument, extended=True)

    def _greeted(self, name: str, *, extended: bool) -> Next:
        if not 0 < len(name) <= NAME_LENGTH:
            return self._fail(replies.SYNTAX_NAME)
        self._name, self._extended = name, extended
        self._end_transaction()
        if not extended:
            return self._useless(replies.reply("250", self._hostname))
        words = [self._hostname, "PIPELINING", f"SIZE {MESSAGE_SIZE}", "8BITMIME", "SMTPUTF8", "CHUNKING"]
        if not self.secure:
            words.append("STARTTLS")
        if self._may_login:
            words.append("AUTH PLAIN LOGIN")
        text = "".join(f"250-{word}\r\n" for word in words)
        return self._useless(f"{text}250 ENHANCEDSTATUSCODES\r\n".encode("ascii"))

    def _noop(self, argument: str) -> Next:
        return self._useless(replies.OK)

    def _help(self, argument: str) -> Next:
        return self._useless(replies.HELP)

    def _vrfy(self, argument: str) -> Next:
        return self._useless(replies.NOT_VERIFIED)

    def _expn(self, argument: str) -> Next:
        return self._fail(replies.NOT_IMPLEMENTED)

    def _rset(self, argument: str) -> Next:
        if argument:
            return self._fail(replies.SYNTAX_NOTHING)
        self._end_transaction()
        return self._useless(replies.OK)

    def _quit(self, argument: str) -> Next:
        if argument:
            return self._fail(replies.SYNTAX_NOTHING)
        self.quit = True
        return self.goodbye(replies.BYE)

    # ---- MAIL

    def _mail(self, argument: str) -> Next:
        if not self._name:
            return self._fail(replies.SAY_HELLO)
        if self._login is None:
            return self._fail(self._no_transaction())
        if self._transaction is not None:
            return self._fail(replies.MAIL_TWICE)
        path = commands.path(argument, "FROM:")
        if path is None:
            return self._fail(replies.SYNTAX_MAIL)
        if path.parameters and (wrong := _wrong_parameter(path.parameters)):
            return self._fail(wrong)
        return self._mail_from(self._login, path)

    def _mail_from(self, login: Login, path: commands.Path) -> Next:
        # Looked up again for each message: a session may outlive its credential.
        self._caller = caller = self._house.caller(login)
        if caller is None:
            self._login = None
            return self._fail(replies.LOGIN_GONE)
        if not path.address:
            return self._fail(replies.NULL_SENDER)
        utf8 = "SMTPUTF8" in path.parameters
        if is_costly(path.address):
            self._turn += limits.COSTLY
        try:
            self._house.check(caller)
            sender = address(path.address, "MAIL FROM")
        except BadAddress as bad:
            return self._fail(replies.reply("553 5.1.7", bad.reason))
        except Refused as refused:
            return self._refuse(refused)
        if not (utf8 or path.address.isascii()):
            return self._fail(replies.NEEDS_SMTPUTF8)
        if sender.domain not in caller.domains:
            return self._fail(replies.FOREIGN_SENDER)
        self._transaction = Transaction(sender.wire, utf8=utf8)
        self.out.append(replies.SENDER_OK)
        return None


def _wrong_parameter(parameters: dict[str, str | None]) -> bytes | None:
    """The reply to a parameter of MAIL that is not as it should be."""
    for name, value in parameters.items():
        if name == "SIZE":
            if value is None or not value.isdigit() or len(value) > 20:  # RFC 1870 4
                return replies.BAD_SIZE
            if int(value) > MESSAGE_SIZE:
                return replies.TOO_LARGE
        elif name == "BODY":
            if (value or "").upper() not in ("7BIT", "8BITMIME"):
                return replies.BAD_BODY
        elif name == "SMTPUTF8":
            if value is not None:
                return replies.BAD_SMTPUTF8
        elif name != "AUTH" or value is None:  # whom a relay vouches for (RFC 4954 5) is nothing to us
            return replies.NO_SUCH_PARAMETER
    return None


_VERBS: dict[str, Callable[[Dialogue, str], Next]] = {
    "HELO": Dialogue._helo,
    "EHLO": Dialogue._ehlo,
    "STARTTLS": Dialogue._starttls,
    "AUTH": Dialogue._auth,
    "MAIL": Dialogue._mail,
    "RCPT": Dialogue._rcpt,
    "DATA": Dialogue._data,
    "BDAT": Dialogue._bdat,
    "RSET": Dialogue._rset,
    "NOOP": Dialogue._noop,
    "HELP": Dialogue._help,
    "VRFY": Dialogue._vrfy,
    "EXPN": Dialogue._expn,
    "QUIT": Dialogue._quit,
}
