"""Every reply to an SMTP client, with its enhanced status code (RFC 2034).

A reply is one line of printable ASCII within the length of RFC 5321, whatever its text.
"""

from appliance.errors import Code, PublicError
from appliance.message.limits import MESSAGE_SIZE

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


def ehlo(hostname: str, *, starttls: bool, auth: bool, dsn: bool) -> bytes:
    words = [hostname, "PIPELINING", f"SIZE {MESSAGE_SIZE}", "8BITMIME", "SMTPUTF8", "CHUNKING"]
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
BAD_SMTPUTF8 = reply("501 5.5.4", "SMTPUTF8 takes no value")
NO_SUCH_PARAMETER = reply("555 5.5.4", "Parameter not recognized or not supported")
NEEDS_SMTPUTF8 = reply("553 5.6.7", "A non-ASCII address requires the SMTPUTF8 parameter")
SAY_HELLO = reply("503 5.5.1", "Send EHLO first")
MAIL_FIRST = reply("503 5.5.1", "Send MAIL first")
MAIL_TWICE = reply("503 5.5.1", "MAIL was already sent; send RSET to start over")
RCPT_FIRST = reply("503 5.5.1", "Send RCPT first")
NOT_AMONG_CHUNKS = reply("503 5.5.1", "The message started with BDAT; finish it with BDAT, or send RSET")
NO_TLS_HERE = reply("503 5.5.1", "TLS is already active")
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
