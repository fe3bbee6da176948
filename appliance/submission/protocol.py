"""SMTP, the server's side of one connection: bytes in, replies and actions out. No I/O.

`connection.py` drives it, and a `Backend` decides what the listener accepts: submission, or feedback (`inbound/`). A
message needs EHLO, AUTH (under TLS) if clients log in, MAIL, at least one RCPT, then DATA or BDAT. Commands may be
pipelined (RFC 2920): input is read up to the first command that needs an `Action`, or COMMANDS_PER_TURN.

    phase    input is read as                ends with
    COMMAND  command lines, AUTH responses   DATA, BDAT: CONTENT; a command that needs an action: ACTION
    CONTENT  the message, or one chunk       its end: ACTION; the end of a chunk or a refused message: COMMAND
    ACTION   not read                        its result, which the driver reports: COMMAND
    OVER     not read                        nothing: the last reply is written, and the connection closes

`dialogue` parses lines and runs AUTH exchanges, `content` holds the transaction.
"""

from collections.abc import Callable
from typing import Final

from appliance.concurrency.fair_share import MemoryBudget
from appliance.errors import PublicError
from appliance.message.addresses import Address, cost_of_address
from appliance.model.accounts import Caller
from appliance.submission import dialogue
from appliance.submission.content import (
    ADDRESS_COST,
    Action,
    Backend,
    ChunkedContent,
    DataContent,
    FindCaller,
    IncomingTransaction,
    Phase,
    PlainAction,
    Submit,
)
from appliance.submission.dialogue import AuthExchange, Login, MailParameters, Rejected

EHLO_NAME: Final = 255  # octets, RFC 5321 4.5.3.1.2
MAX_ERRORS: Final = 20  # 5xx replies since the last accepted message
MAX_JUNK_COMMANDS: Final = 100  # commands without progress since the last accepted message
SMALL_CHUNK: Final = 1_024  # octets; a smaller BDAT counts as a junk command
LOGIN_FAILURES: Final = 3  # on one connection
COMMANDS_PER_TURN: Final = 50  # before other connections run: about a millisecond of the event loop
COSTLY_SENDER: Final = 20  # commands that an expensive sender address counts for

Result = bytes | Action | None  # the reply to a command, or the action it needs first; None: replied


class SmtpProtocol:
    """The state of one connection. The driver writes the replies in `out`."""

    def __init__(self, hostname: str, backend: Backend, budget: MemoryBudget, *, secure: bool) -> None:
        self.out = [dialogue.reply("220", f"{hostname} ESMTP")]
        self.phase = Phase.COMMAND
        self.stopping = False
        self.quit = False  # the client sent QUIT
        self.content: DataContent | ChunkedContent | None = None  # being read
        self._hostname = hostname
        self.backend = backend
        self._logins = backend.logins
        self._budget = budget
        self.input = dialogue.InputBuffer()
        self._errors = self._junk = 0  # since the last accepted message
        self._login_failures = 0
        self._turn = 0  # commands read in this turn
        self._transaction: IncomingTransaction | None = None
        self._submitting = False  # the message is being stored
        self._reset(secure=secure)

    def _reset(self, *, secure: bool) -> None:
        self.secure = secure
        self._may_login = self._logins is not None and (secure or self._logins.plaintext)
        self._greeted = self._extended = False  # by HELO or EHLO; by EHLO
        self._helo = ""
        self._login: Login | None = None
        self._exchange: AuthExchange | None = None  # waiting for the client's response
        self._end_transaction()

    # ---- called by the driver

    def receive(self, data: bytes) -> Action | None:
        if self.phase is Phase.OVER:
            return None
        self.input.feed(data)
        return self.proceed()

    def proceed(self) -> Action | None:
        action = self._read()
        if action is not None:
            self.phase = Phase.ACTION
        elif self.stopping:
            self.stop()
        return action

    def stop(self) -> None:
        self.stopping = True
        if self.phase is Phase.COMMAND and not self._is_between_chunks():
            self.end(dialogue.CLOSING)

    def end(self, last_reply: bytes) -> None:
        if self.phase is not Phase.OVER:
            self.out.append(last_reply)
            self.close()

    def close(self) -> None:
        """End the session. A message being stored keeps its memory until `submitted`."""
        self.phase = Phase.OVER
        self.input.take()
        if not self._submitting:
            self._end_transaction()

    # ---- results of actions

    def resume(self) -> None:
        if self.phase is Phase.ACTION:
            self.phase = Phase.COMMAND

    def secured(self) -> None:
        self._reset(secure=True)
        self.resume()

    def login_failed(self, *, too_many: bool) -> None:
        """`too_many`: the client's address is blocked for failures on all its connections."""
        self._login_failures += 1
        self.resume()
        if too_many or self._login_failures >= LOGIN_FAILURES:
            self.end(dialogue.TOO_MANY_FAILURES)
        else:
            self._counted(dialogue.WRONG_LOGIN)

    def caller_found(self, action: FindCaller, result: Caller | PublicError | None) -> Action | None:
        if result is None and action.mail is None:
            return PlainAction.WRONG_LOGIN
        self.resume()
        if self.phase is Phase.OVER:
            return None  # the connection was lost
        if isinstance(result, PublicError):
            self._counted(dialogue.refusal(result))
        elif result is None:
            self._login = None
            self._counted(dialogue.LOGIN_GONE)
        elif action.mail is not None:
            try:
                self.out.append(self._begin_transaction(result, *action.mail))
            except Rejected as rejected:
                self._counted(rejected.reply)
        elif (reply := self._logged_in(action.login, result)) is not None:
            self.out.append(reply)
        return None

    def recipient_found(self, result: Address | Rejected | PublicError) -> None:
        self.resume()
        if self._transaction is None:  # the connection was lost meanwhile
            return
        try:
            self.out.append(self._transaction.add_found(result))
        except Rejected as rejected:
            self._counted(rejected.reply)

    def submitted(self, result: str | PublicError | None) -> None:
        """`result`: the id of the stored message, the refusal, or None after an internal error."""
        self._submitting = False
        self._end_transaction()
        self.resume()
        if isinstance(result, str):
            self._errors = self._junk = 0
            self.out.append(dialogue.queued(result))
        elif result is not None:
            self._counted(dialogue.refusal(result))
        else:
            self.out.append(dialogue.INTERNAL_ERROR)

    # ---- reading

    def _read(self) -> Action | None:
        self._turn = 0
        action: Action | None = None
        while self.input.data and action is None:
            if self.phase is Phase.CONTENT:
                action = self._read_content()
            elif not (self._takes_commands() and self.input.has_line(auth=self._exchange is not None)):
                break
            elif self._turn >= COMMANDS_PER_TURN:
                action = PlainAction.YIELD
            else:
                self._turn += 1
                action = self._read_line()
        return action

    def _takes_commands(self) -> bool:
        return self.phase is Phase.COMMAND and (not self.stopping or self._is_between_chunks())

    def _read_line(self) -> Action | None:
        exchange, self._exchange = self._exchange, None
        try:
            line = self.input.next_line(auth=exchange is not None)
            if line is None:
                return None
            verb, argument = dialogue.parse(line)
            if exchange is not None:
                result = self._log_in(exchange, dialogue.continue_login(exchange, line.decode("utf-8")))
            elif verb in dialogue.HTTP_METHODS:
                raise Rejected(dialogue.NOT_HTTP, final=True)
            elif verb not in _COMMANDS:
                raise Rejected(dialogue.NO_SUCH_COMMAND)
            elif not argument.isascii() and verb not in ("MAIL", "RCPT"):
                raise Rejected(dialogue.NOT_TEXT)
            elif argument and verb in ("STARTTLS", "RSET", "QUIT"):
                raise Rejected(dialogue.SYNTAX_NOTHING)
            else:
                result = _COMMANDS[verb](self, argument)
        except Rejected as rejected:
            if rejected.final:
                self.end(rejected.reply)
            else:
                self._counted(rejected.reply)
            return None
        if not isinstance(result, bytes):
            return result
        self.out.append(result)
        return None

    def _counted(self, reply: bytes) -> None:
        """Reply to a command without progress, and count it, as Postfix counts errors and junk commands."""
        self.out.append(reply)
        if reply.startswith(b"5"):
            self._errors += 1
            if self._errors >= MAX_ERRORS:
                self.end(dialogue.TOO_MANY_ERRORS)
        else:
            self._junk += 1
            if self._junk >= MAX_JUNK_COMMANDS:
                self.end(dialogue.TOO_MUCH_JUNK)

    # ---- the session

    def _hello(self, name: str, *, extended: bool) -> None:
        if not 0 < len(name) <= EHLO_NAME:
            raise Rejected(dialogue.SYNTAX_NAME)
        self._greeted, self._extended, self._helo = True, extended, name
        self._end_transaction()
        now = self.backend.now() if self.backend.now is not None and self._may_login else None
        offers = {"starttls": self._takes_tls(), "auth": self._may_login, "dsn": self.backend.dsn}
        offered = dialogue.ehlo(self._hostname, now=now, **offers)
        self._counted(offered if extended else dialogue.reply("250", self._hostname))

    def _rset(self, _: str) -> None:
        self._end_transaction()
        self._counted(dialogue.OK)

    def _quit(self, _: str) -> None:
        self.quit = True
        self.end(dialogue.BYE)

    def _starttls(self, _: str) -> Action:
        if not self._takes_tls():
            raise Rejected(dialogue.NO_TLS_HERE)
        self.out.append(dialogue.READY_FOR_TLS)
        # Plaintext after it may be injected (RFC 3207 4.2, 5). The driver reads none either.
        self.input.take()
        return PlainAction.START_TLS

    def _takes_tls(self) -> bool:
        return self.backend.starttls and not self.secure

    # ---- AUTH (RFC 4954)

    def _auth(self, argument: str) -> Result:
        if self._logins is None:
            raise Rejected(dialogue.NOT_IMPLEMENTED)
        if not self._extended:
            raise Rejected(dialogue.SAY_HELLO)
        if not self._may_login:
            raise Rejected(dialogue.LOGIN_NEEDS_TLS)
        if self._login is not None:
            raise Rejected(dialogue.LOGGED_IN_ALREADY)
        return self._log_in(*dialogue.begin_login(argument))

    def _log_in(self, exchange: AuthExchange, login: bytes | Login) -> Result:
        if isinstance(login, bytes):  # another challenge
            self._exchange = exchange
            return login
        caller = self._known_caller(login)
        return FindCaller(login) if caller is None else self._logged_in(login, caller)

    def _logged_in(self, login: Login, caller: Caller) -> bytes | None:
        if self._logins is not None and not self._logins.admit(caller):
            self.end(dialogue.TOO_MANY_CONNECTIONS)
            return None
        self._login = login
        return dialogue.LOGGED_IN

    def _known_caller(self, login: Login) -> Caller | None:
        return self._logins.known_caller(login) if self._logins is not None else None

    # ---- the envelope

    def _mail(self, argument: str) -> Result:
        if not self._greeted:
            raise Rejected(dialogue.SAY_HELLO)
        if self._login is None and self._logins is not None:
            if self._logins.anonymous is None:
                raise self._no_transaction()
            self._login = self._logins.anonymous
        if self._transaction is not None:
            raise Rejected(dialogue.MAIL_TWICE)
        offers_hold = self.backend.now is not None
        sender, parameters = dialogue.mail_path(argument, dsn=self.backend.dsn, hold=offers_hold)
        if cost_of_address(sender) > ADDRESS_COST:
            self._turn += COSTLY_SENDER
        if self._login is None:
            return self._begin_transaction(None, sender, parameters)
        # Look the caller up for each message: a session may outlive its credential.
        caller = self._known_caller(self._login)
        if caller is None:
            return FindCaller(self._login, (sender, parameters))
        return self._begin_transaction(caller, sender, parameters)

    def _begin_transaction(self, caller: Caller | None, sender: str, parameters: MailParameters) -> bytes:
        self._transaction = IncomingTransaction(self.backend, caller, sender, self._budget, parameters)
        return dialogue.SENDER_OK

    def _rcpt(self, argument: str) -> Result:
        if self._transaction is None:
            raise self._no_transaction()
        return self._transaction.rcpt(argument)

    def _no_transaction(self) -> Rejected:
        if self._login is not None or self._logins is None:
            return Rejected(dialogue.MAIL_FIRST)
        return Rejected(dialogue.LOGIN_NEEDED if self._may_login else dialogue.TLS_NEEDED)

    # ---- DATA and BDAT

    def _with_recipients(self) -> IncomingTransaction:
        if self._transaction is None:
            raise self._no_transaction()
        if not self._transaction.recipients:
            raise Rejected(dialogue.RCPT_FIRST)
        return self._transaction

    def _data(self, argument: str) -> bytes | None:
        try:
            if argument:
                raise Rejected(dialogue.SYNTAX_NOTHING)
            if self._with_recipients().chunks is not None:
                raise Rejected(dialogue.NOT_AMONG_CHUNKS)
        except Rejected as rejected:
            self._counted(rejected.reply)
            if self.input.data:
                # The client sent the message without waiting for the reply: it must not be read as commands.
                self.end(dialogue.TALKED_TOO_EARLY)
            return None
        self.content, self.phase = DataContent(), Phase.CONTENT
        return dialogue.GO_AHEAD

    def _bdat(self, argument: str) -> Action | None:
        size, last = dialogue.chunk(argument)
        try:
            transaction = self._with_recipients()
            chunks = transaction.chunks = transaction.chunks or ChunkedContent()
        except Rejected as rejected:  # the chunk arrives anyway
            chunks = ChunkedContent()
            chunks.discard(rejected.reply)
        chunks.expect(size, last=last)
        self.content, self.phase = chunks, Phase.CONTENT
        return None if size else self._content_received(chunks)

    def _read_content(self) -> Action | None:
        content = self.content
        assert content is not None  # noqa: S101 - in the phase CONTENT
        before = content.size
        rest = content.receive(self.input.take())
        if self._transaction is not None and not content.refusal:
            self._transaction.take_memory(content, content.size - before)
        if rest is None:
            return None
        self.input.feed(rest)
        return self._content_received(content)

    def _content_received(self, content: DataContent | ChunkedContent) -> Action | None:
        self.phase = Phase.COMMAND
        transaction = self._transaction
        if content.refusal or transaction is None:
            if transaction is not None:
                self.backend.content_refused(self._submit(transaction, content), content.refusal)
            self._end_transaction()
            self._counted(content.refusal)
        elif not isinstance(content, ChunkedContent) or content.last:
            self._submitting = True
            return self._submit(transaction, content)
        elif content.announced < SMALL_CHUNK:
            self._counted(dialogue.CHUNK_ACCEPTED)
        else:
            self.out.append(dialogue.CHUNK_ACCEPTED)
        return None

    def _submit(self, transaction: IncomingTransaction, content: DataContent | ChunkedContent) -> Submit:
        envelope = transaction.caller, transaction.sender, tuple(transaction.recipients.values())
        return Submit(
            *envelope,
            content.content,
            content.size,
            self.secure,
            transaction.dsn,
            self._login,
            transaction.hold,
            self._helo,
        )

    @property
    def has_message(self) -> bool:
        return self._transaction is not None and self.content is not None and not self.content.refusal

    def _is_between_chunks(self) -> bool:
        return self._transaction is not None and self._transaction.chunks is not None

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._transaction.release()
        self._transaction = self.content = None


_COMMANDS: dict[str, Callable[[SmtpProtocol, str], Result]] = {
    "HELO": lambda protocol, name: protocol._hello(name, extended=False),
    "EHLO": lambda protocol, name: protocol._hello(name, extended=True),
    "STARTTLS": SmtpProtocol._starttls,
    "AUTH": SmtpProtocol._auth,
    "MAIL": SmtpProtocol._mail,
    "RCPT": SmtpProtocol._rcpt,
    "DATA": SmtpProtocol._data,
    "BDAT": SmtpProtocol._bdat,
    "RSET": SmtpProtocol._rset,
    "QUIT": SmtpProtocol._quit,
    "NOOP": lambda protocol, _: protocol._counted(dialogue.OK),
    "HELP": lambda protocol, _: protocol._counted(dialogue.help_text(auth=protocol._logins is not None)),
    "VRFY": lambda protocol, _: protocol._counted(dialogue.NOT_VERIFIED),
    "EXPN": lambda protocol, _: protocol._counted(dialogue.NOT_IMPLEMENTED),
}
