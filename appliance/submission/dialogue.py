"""The SMTP dialogue: every reply to a client, and the parser of commands: lines, verbs, arguments, paths and parameters
(RFC 5321 4.1), AUTH PLAIN and AUTH LOGIN (RFC 4954, 4616). No I/O.

A reply is one line of printable ASCII within the length of RFC 5321, whatever its text, with its enhanced status code
(RFC 2034). Invalid input raises `Rejected` with its reply. A line without CRLF ends the session: where the client's
next command starts would be a guess. An AUTH exchange ends in a `Login` or raises `Rejected`; the backend checks the
login. Only the SHA-256 of a password leaves this module, which is also all that the store has.
"""

import re
from collections.abc import Callable, Generator
from typing import Final

import pybase64
from msgspec import Struct

from appliance.errors import Code, PublicError, Refused
from appliance.message import addresses
from appliance.message.addresses import Address
from appliance.message.limits import MESSAGE_SIZE, SCHEDULED_AHEAD
from appliance.message.schedule import EXAMPLE, microseconds
from appliance.model.accounts import KEY_PREFIX
from appliance.model.mail import DsnCondition, DsnRequest
from appliance.store.access import sha256
from appliance.times import SECOND, rfc3339

# ---- replies

TEXT_LENGTH = 480  # octets, so that a reply line stays within the 512 of RFC 5321 4.5.3.1.5


class Rejected(Exception):
    def __init__(self, reply: bytes, *, final: bool = False, code: Code | None = None) -> None:
        super().__init__(reply)
        self.reply = reply
        self.final = final
        self.code = code  # in the request log


def reply(code: str, text: str) -> bytes:
    """Return one reply line; other than printable ASCII becomes `?`, so that no text can end the line."""
    plain = "".join(character if " " <= character <= "~" else "?" for character in text[:TEXT_LENGTH])
    return f"{code} {plain}\r\n".encode("ascii")


def refusal(refused: PublicError) -> bytes:
    return reply(refused.code.smtp, refused.text)


def queued(message_id: str) -> bytes:
    return b"250 2.0.0 queued as " + message_id.encode("ascii") + b"\r\n"


def ehlo(hostname: str, *, starttls: bool, auth: bool, dsn: bool, now: int | None = None) -> bytes:
    """`now`: the time from which FUTURERELEASE is counted; None: it is not offered."""
    words = [hostname, "PIPELINING", f"SIZE {MESSAGE_SIZE}", "8BITMIME", "SMTPUTF8", "CHUNKING"]
    if now is not None:  # RFC 4865 3
        words.append(f"FUTURERELEASE {SCHEDULED_AHEAD // SECOND} {rfc3339(now + SCHEDULED_AHEAD)[:19]}Z")
    words += ["DSN"] * dsn + ["STARTTLS"] * starttls + ["AUTH PLAIN LOGIN"] * auth
    return "".join([f"250-{word}\r\n" for word in words] + ["250 ENHANCEDSTATUSCODES\r\n"]).encode("ascii")


def help_text(*, auth: bool) -> bytes:
    return reply("214 2.0.0", f"EHLO, STARTTLS,{' AUTH,' * auth} MAIL, RCPT, DATA, BDAT, RSET, NOOP, QUIT")


OK = reply("250 2.0.0", "OK")
SENDER_OK = reply("250 2.1.0", "Sender OK")
RECIPIENT_OK = reply("250 2.1.5", "Recipient OK")
GO_AHEAD = reply("354", "End data with <CR><LF>.<CR><LF>")
BYE = reply("221 2.0.0", "Bye")
READY_FOR_TLS = reply("220 2.0.0", "Ready to start TLS")
NOT_VERIFIED = reply("252 2.5.2", "Cannot verify; send the message to find out")

LOGGED_IN = reply("235 2.7.0", "Authentication successful")
ASK_PLAIN = b"334 \r\n"
ASK_USERNAME = b"334 VXNlcm5hbWU6\r\n"  # "Username:"
ASK_PASSWORD = b"334 UGFzc3dvcmQ6\r\n"  # "Password:"
WRONG_LOGIN = reply("535 5.7.8", "This credential is not valid. Check it, or create a new one.")
LOGIN_NEEDED = reply("530 5.7.0", "Authentication required")
LOGIN_GONE = reply("535 5.7.8", "This credential is no longer valid. Log in again.")
TLS_NEEDED = reply("530 5.7.0", "Must issue a STARTTLS command first")
LOGIN_NEEDS_TLS = reply("538 5.7.11", "Encryption is required for authentication; use STARTTLS first")
LOGGED_IN_ALREADY = reply("503 5.5.1", "Already authenticated")
LOGIN_ABORTED = reply("501 5.7.0", "Authentication aborted")
LOGIN_UNREADABLE = reply("501 5.5.2", "Cannot decode the response; send base64")
LOGIN_NO_PAIR = reply("501 5.5.2", "Expected NUL username NUL password, with an empty or equal authorization identity")
MECHANISM_UNKNOWN = reply("504 5.5.4", "Unknown authentication mechanism; use PLAIN or LOGIN")
TOO_MANY_FAILURES = reply("421 4.7.0", "Too many failed logins; goodbye")

NO_SUCH_COMMAND = reply("500 5.5.1", "Command not recognized")
NOT_IMPLEMENTED = reply("502 5.5.1", "Command not implemented")
LINE_TOO_LONG = reply("500 5.5.2", "Line too long")
CONTROL_IN_LINE = reply("500 5.5.2", "A command must not contain control characters")
NO_CRLF = reply("500 5.5.2", "Lines must end with CRLF; goodbye")
NOT_TEXT = reply("500 5.5.2", "A command must be ASCII; only addresses may be UTF-8")
SYNTAX_NAME = reply("501 5.5.4", "Syntax: EHLO hostname")
SYNTAX_NOTHING = reply("501 5.5.4", "This command takes no argument")
SYNTAX_AUTH = reply("501 5.5.4", "Syntax: AUTH mechanism [initial-response]")
SYNTAX_MAIL = reply("501 5.5.4", "Syntax: MAIL FROM:<address> [parameters]")
SYNTAX_RCPT = reply("501 5.5.4", "Syntax: RCPT TO:<address> [parameters]")
SYNTAX_BDAT = reply("501 5.5.4", "Syntax: BDAT size [LAST]")
BAD_SIZE = reply("501 5.5.4", "SIZE must be a number of octets")
BAD_BODY = reply("501 5.5.4", "BODY must be 7BIT or 8BITMIME")
BAD_RET = reply("501 5.5.4", "RET must be FULL or HDRS")
BAD_ENVID = reply("501 5.5.4", "ENVID must be xtext of at most 100 printable ASCII characters")
BAD_NOTIFY = reply("501 5.5.4", "NOTIFY must be NEVER, or a comma-separated list of SUCCESS, FAILURE and DELAY")
BAD_ORCPT = reply("501 5.5.4", "ORCPT must be an address type, a semicolon and xtext, at most 500 characters")
BAD_HOLDFOR = reply("501 5.5.4", "HOLDFOR must be a number of seconds, from 1, with at most 9 digits")
BAD_HOLDUNTIL = reply("501 5.5.4", f"HOLDUNTIL must be a future RFC 3339 time with an offset, such as {EXAMPLE}")
HELD_TWICE = reply("501 5.5.4", "Send either HOLDFOR or HOLDUNTIL")
TOO_FAR_AHEAD = reply("554 5.6.0", f"A message can be held for at most {SCHEDULED_AHEAD // SECOND} seconds (30 days)")
BAD_SMTPUTF8 = reply("501 5.5.4", "SMTPUTF8 takes no value")
NO_SUCH_PARAMETER = reply("555 5.5.4", "Parameter not recognized or not supported")
NEEDS_SMTPUTF8 = reply("553 5.6.7", "A non-ASCII address requires the SMTPUTF8 parameter")
SAY_HELLO = reply("503 5.5.1", "Send EHLO first")
MAIL_FIRST = reply("503 5.5.1", "Send MAIL first")
MAIL_TWICE = reply("503 5.5.1", "MAIL was already sent; send RSET to start over")
RCPT_FIRST = reply("503 5.5.1", "Send RCPT first")
NOT_AMONG_CHUNKS = reply("503 5.5.1", "The message started with BDAT; finish it with BDAT, or send RSET")
# A web page can make a browser post commands to this port, below the lines of an HTTP request.
HTTP_METHODS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"))
NOT_HTTP = reply("421 4.7.0", "This is an SMTP server, not HTTP; closing connection")
NO_TLS_HERE = reply("503 5.5.1", "TLS is already active or not offered")
NULL_SENDER = reply("550 5.7.1", "The null sender cannot submit mail; use an address of your domain")
FOREIGN_SENDER = reply(
    "550 5.7.1", "The sender's domain is not registered and verified for this account. Add it first."
)
TOO_MANY_RECIPIENTS = reply("452 4.5.3", "Too many recipients; send the message to the others separately")
TOO_LARGE = reply("552 5.3.4", "The message is larger than 10 MiB")
NO_MEMORY = reply("451 4.3.0", "Too many messages are being received; try again later")
CHUNK_ACCEPTED = reply("250 2.0.0", "Chunk accepted")

TALKED_TOO_EARLY = reply("421 4.7.0", "Message sent before the 354 reply; goodbye")
TOO_MANY_ERRORS = reply("421 4.7.0", "Too many errors; goodbye")
TOO_MUCH_JUNK = reply("421 4.7.0", "Too many commands without a message; goodbye")
TOO_SLOW = reply("421 4.4.2", "Timeout; goodbye")
SESSION_OVER = reply("421 4.4.2", "Session time limit reached; open a new connection")
CLOSING = reply("421 4.3.2", "The server is shutting down; try again in a moment")
TOO_MANY_CONNECTIONS = reply("421 4.7.0", "Too many connections with this credential; use fewer")
CROWDED = reply("421 4.7.0", "Too many connections; try again later")
INTERNAL_ERROR = reply("451 4.3.0", "Internal error. The server's log has the details.")


# ---- commands

# Octets of a line with its CRLF.
COMMAND_LINE: Final = 512  # RFC 5321 4.5.3.1.4
# With SIZE, BODY, SMTPUTF8, AUTH, RET, ENVID and HOLDUNTIL: RFC 1870, 6152, 6531, 4954, 3461, 4865.
MAIL_LINE: Final = COMMAND_LINE + 26 + 17 + 10 + 500 + 8 + 107 + 34
RCPT_LINE: Final = COMMAND_LINE + 28 + 500  # with NOTIFY and ORCPT, RFC 3461
ENVELOPE_ID: Final = 100  # characters of ENVID, RFC 3461 4.4
ORIGINAL_RECIPIENT: Final = 500  # characters of ORCPT, RFC 3461 4.2
AUTH_LINE: Final = 12_288  # an AUTH command or a response to its challenge, RFC 4954 4
SKIPPED_LINE: Final = 64 * 1024  # of one overlong line, dropped before the session ends

# Forbidden in commands: C0, DEL, and the C1 controls in UTF-8.
_CONTROLS = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_ESMTP_PARAMETER = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([!-<>-~\x80-\U0010ffff]+))?")
_ONCE = frozenset(("RET", "ENVID", "NOTIFY", "ORCPT", "HOLDFOR", "HOLDUNTIL"))
_INTERVAL = re.compile(r"[1-9][0-9]{0,8}")  # RFC 4865 3
_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})+")  # RFC 3461 4
_XTEXT_OCTET = re.compile(r"\+([0-9A-F]{2})")
_ADDRESS_TYPE = re.compile(r"[A-Za-z0-9!#$%&'*+/?^_`{|}~-]+")  # an atom
_PATH = re.compile(r" ?<([^<>]*)>(?: (.*))?")
_CHUNK = re.compile(r"([0-9]{1,20})(?: (LAST))?", re.IGNORECASE)
_LINES = {b"MAIL ": MAIL_LINE, b"RCPT ": RCPT_LINE}  # longer because of parameters


class InputBuffer:
    """Unread input of a client. An overlong line is dropped while it arrives."""

    def __init__(self) -> None:
        self.data = b""
        self._skipped = 0  # dropped octets of an overlong line

    def feed(self, data: bytes) -> None:
        self.data = self.data + data if self.data else data

    def take(self) -> bytes:
        data, self.data = self.data, b""
        return data

    def has_line(self, *, auth: bool) -> bool:
        """Return whether `next_line` can make progress."""
        return b"\n" in self.data or self._skipped > 0 or len(self.data) > self._limit(auth=auth)

    def next_line(self, *, auth: bool) -> bytes | None:
        """Return the next line without its CRLF; None if the input was part of an overlong line."""
        end = self.data.find(b"\n") + 1
        if not end:
            self._skipped += len(self.take())
            if self._skipped > SKIPPED_LINE:
                raise Rejected(LINE_TOO_LONG, final=True)
            return None
        too_long = self._skipped > 0 or (end > COMMAND_LINE and end > self._limit(auth=auth))
        line, self.data, self._skipped = self.data[:end], self.data[end:], 0
        if too_long:
            raise Rejected(LINE_TOO_LONG)
        if line[-2:] != b"\r\n":
            raise Rejected(NO_CRLF, final=True)
        return line[:-2]

    def _limit(self, *, auth: bool) -> int:
        verb = self.data[:5].upper()
        if auth or verb == b"AUTH ":
            return AUTH_LINE
        return _LINES.get(verb, COMMAND_LINE)


def parse(line: bytes) -> tuple[str, str]:
    # RFC 5321 4.1.1: trailing white space is not significant; a tab is still a control character.
    line = line.rstrip(b" ")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise Rejected(CONTROL_IN_LINE if _CONTROLS.search(line) else NOT_TEXT) from None
    if not text.isprintable() and _CONTROLS.search(line):  # no control character is printable
        raise Rejected(CONTROL_IN_LINE)
    verb, _, argument = text.partition(" ")
    if not verb.isascii():
        raise Rejected(NOT_TEXT)
    return verb.upper(), argument


MailParameters = dict[str, str | None]  # names in upper case


def mail_path(argument: str, *, dsn: bool, hold: bool = False) -> tuple[str, MailParameters]:
    """Return the address and parameters of MAIL, checked but for `hold_time`. `dsn`, `hold`: these are offered."""
    address, parameters = _path(argument, "FROM:", SYNTAX_MAIL)
    for name, value in parameters.items():
        if dsn and name in ("RET", "ENVID"):
            _check_dsn_parameter(name, value)
        elif not (hold and name in ("HOLDFOR", "HOLDUNTIL")):
            _check_parameter(name, value)
    return address, parameters


def rcpt_path(argument: str, *, dsn: bool) -> tuple[str, MailParameters]:
    address, parameters = _path(argument, "TO:", SYNTAX_RCPT)
    if not address:
        raise Rejected(SYNTAX_RCPT)
    if parameters and not (dsn and parameters.keys() <= {"NOTIFY", "ORCPT"}):
        raise Rejected(NO_SUCH_PARAMETER)
    return address, parameters


def _path(argument: str, keyword: str, syntax: bytes) -> tuple[str, MailParameters]:
    """Parse `FROM:<a@b> SIZE=5`; a space after the colon is common, the brackets are required."""
    match = _PATH.fullmatch(argument, len(keyword)) if argument[: len(keyword)].upper() == keyword else None
    if match is None:
        raise Rejected(syntax)
    parameters: MailParameters = {}
    for word in (match[2] or "").split():
        parameter = _ESMTP_PARAMETER.fullmatch(word)
        if parameter is None:
            raise Rejected(syntax)
        name, value = parameter[1].upper(), parameter[2]
        if name in _ONCE and name in parameters:
            raise Rejected(syntax)
        if value is not None and not value.isascii() and name != "ORCPT":
            raise Rejected(syntax)
        # Accept an equal duplicate: smtplib adds SMTPUTF8 and BODY again.
        if (parameters.setdefault(name, value) or "").upper() != (value or "").upper():
            raise Rejected(syntax)
    return match[1], parameters


def _check_parameter(name: str, value: str | None) -> None:
    if name == "SIZE":
        if value is None or not value.isdigit() or len(value) > 20:  # RFC 1870 4
            raise Rejected(BAD_SIZE)
        if int(value) > MESSAGE_SIZE:
            raise Rejected(TOO_LARGE)
    elif name == "BODY":
        if (value or "").upper() not in ("7BIT", "8BITMIME"):
            raise Rejected(BAD_BODY)
    elif name == "SMTPUTF8":
        if value is not None:
            raise Rejected(BAD_SMTPUTF8)
    elif name != "AUTH" or value is None:  # AUTH= (RFC 4954 5) is ignored
        raise Rejected(NO_SUCH_PARAMETER)


def hold_time(mail: MailParameters, now: int) -> int | None:
    """Return when HOLDFOR or HOLDUNTIL of MAIL releases the message (RFC 4865); None without them."""
    if "HOLDFOR" not in mail and "HOLDUNTIL" not in mail:
        return None
    if "HOLDFOR" in mail and "HOLDUNTIL" in mail:
        raise Rejected(HELD_TWICE)
    if "HOLDFOR" in mail:
        if not _INTERVAL.fullmatch(mail["HOLDFOR"] or ""):
            raise Rejected(BAD_HOLDFOR)
        due_at = now + int(mail["HOLDFOR"] or 0) * SECOND
    else:
        try:
            due_at = microseconds(mail["HOLDUNTIL"] or "", "HOLDUNTIL")
        except Refused:
            raise Rejected(BAD_HOLDUNTIL) from None
        if due_at <= now:
            raise Rejected(BAD_HOLDUNTIL)
    if due_at > now + SCHEDULED_AHEAD:
        raise Rejected(TOO_FAR_AHEAD)
    return due_at


# ---- delivery status notifications (RFC 3461)
def _check_dsn_parameter(name: str, value: str | None) -> None:
    if name == "RET":
        if (value or "").upper() not in ("FULL", "HDRS"):
            raise Rejected(BAD_RET)
    elif value is None or len(value) > ENVELOPE_ID or _decoded(value) is None:
        raise Rejected(BAD_ENVID)


def dsn_request(mail: MailParameters, rcpt: MailParameters, *, utf8: bool) -> DsnRequest | None:
    """Return the notifications requested by the checked parameters of MAIL and those of RCPT."""
    original = _original(rcpt["ORCPT"], utf8=utf8) if "ORCPT" in rcpt else ""
    if "NOTIFY" not in rcpt:
        return None
    conditions = (rcpt["NOTIFY"] or "").upper().split(",")
    if conditions == ["NEVER"]:
        return None
    if len(conditions) > len(DsnCondition) or not set(conditions) <= {condition.name for condition in DsnCondition}:
        raise Rejected(BAD_NOTIFY)
    return DsnRequest(
        tuple(condition for condition in DsnCondition if condition.name in conditions),
        original=original,
        full=(mail.get("RET") or "").upper() == "FULL",
        envelope_id=_decoded(mail.get("ENVID") or "") or "",
    )


def _original(value: str | None, *, utf8: bool) -> str:
    """Return the address of ORCPT with its type; non-ASCII characters are escaped (RFC 6533 3)."""
    kind, _, encoded = (value or "").partition(";")
    if utf8 and kind.lower() == "utf-8":
        encoded = "".join(char if char.isascii() else f"\\x{{{ord(char):X}}}" for char in encoded)
    address = _decoded(encoded)
    if len(kind) + 1 + len(encoded) > ORIGINAL_RECIPIENT or not _ADDRESS_TYPE.fullmatch(kind) or address is None:
        raise Rejected(BAD_ORCPT)
    return f"{kind};{address}"


def _decoded(text: str) -> str | None:
    """Decode xtext; None if it is invalid or contains other than printable ASCII, such as a line end."""
    if not _XTEXT.fullmatch(text):
        return None
    decoded = _XTEXT_OCTET.sub(lambda octet: chr(int(octet[1], 16)), text)
    return decoded if decoded.isascii() and decoded.isprintable() else None


def chunk(argument: str) -> tuple[int, bool]:
    match = _CHUNK.fullmatch(argument)
    if match is None:
        # The length of the content that follows is unknown.
        raise Rejected(SYNTAX_BDAT, final=True)
    size = int(match[1])
    if size > MESSAGE_SIZE:
        raise Rejected(TOO_LARGE, final=True)
    return size, match[2] is not None


def parse_address(text: str, field: str = "RCPT TO") -> Address:
    code = "553 5.1.3" if field == "RCPT TO" else "553 5.1.7"
    if " " in text and not text.startswith('"'):
        raise Rejected(reply(code, f"{field}: an address must not contain a space"))
    try:
        return addresses.parse(text, field)
    except Refused as refused:
        raise Rejected(reply(code, refused.text)) from None


# ---- AUTH
class Login(Struct, frozen=True):
    username: str | None  # None: the password is an API key, and any username goes with it
    password_sha256: bytes

    @classmethod
    def of(cls, username: str, password: str) -> "Login":
        return cls(None if password.startswith(KEY_PREFIX) else username, sha256(password))


AuthExchange = Generator[bytes, str, Login]  # yields challenges, receives decoded responses


def begin_login(argument: str) -> tuple[AuthExchange, bytes | Login]:
    name, _, response = argument.partition(" ")
    if not name or " " in response:
        raise Rejected(SYNTAX_AUTH)
    if name.upper() not in _MECHANISMS:
        raise Rejected(MECHANISM_UNKNOWN)
    exchange = _MECHANISMS[name.upper()]()
    challenge = next(exchange)
    return exchange, continue_login(exchange, response) if response else challenge


def continue_login(exchange: AuthExchange, response: str) -> bytes | Login:
    if response == "*":
        raise Rejected(LOGIN_ABORTED)
    try:
        # RFC 4954 4: a single `=` is an empty response.
        encoded = b"" if response == "=" else response.encode("ascii")
        return exchange.send(pybase64.b64decode(encoded, validate=True).decode("utf-8"))
    except ValueError:  # binascii.Error is one
        raise Rejected(LOGIN_UNREADABLE) from None
    except StopIteration as ended:
        login: Login = ended.value
        return login


def _plain() -> AuthExchange:
    # `authzid NUL username NUL password`; another authzid is not supported.
    parts = (yield ASK_PLAIN).split("\0")
    if len(parts) != 3 or parts[0] not in ("", parts[1]) or not parts[1]:
        raise Rejected(LOGIN_NO_PAIR)
    return Login.of(parts[1], parts[2])


def _login() -> AuthExchange:
    username = yield ASK_USERNAME
    password = yield ASK_PASSWORD
    return Login.of(username, password)


_MECHANISMS: dict[str, Callable[[], AuthExchange]] = {"PLAIN": _plain, "LOGIN": _login}
