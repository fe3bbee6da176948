"""The limits of an SMTP client, each with its unit and origin."""

from typing import Final

from appliance.message.limits import MESSAGE_SIZE

# Command lines, in octets with their CRLF.
COMMAND_LINE: Final = 512  # RFC 5321 4.5.3.1.4
MAIL_LINE: Final = COMMAND_LINE + 26 + 17 + 10 + 500 + 8 + 107  # with SIZE, BODY, SMTPUTF8, AUTH, RET and ENVID:
# RFC 1870, 6152, 6531, 4954, 3461
RCPT_LINE: Final = COMMAND_LINE + 28 + 500  # with NOTIFY and ORCPT, RFC 3461
ENVELOPE_ID: Final = 100  # characters of ENVID, RFC 3461 4.4
ORIGINAL_RECIPIENT: Final = 500  # characters of ORCPT, RFC 3461 4.2
AUTH_LINE: Final = 12_288  # an AUTH command or a response to its challenge, RFC 4954 4
SKIPPED_LINE: Final = 64 * 1024  # of one overlong line, dropped before the session ends

# Commands.
EHLO_NAME: Final = 255  # octets, RFC 5321 4.5.3.1.2
RCPT_COMMANDS: Final = 1_000  # in one transaction, accepted or not
MAX_ERRORS: Final = 20  # 5xx replies since the last accepted message
MAX_JUNK_COMMANDS: Final = 100  # commands without progress since the last accepted message
SMALL_CHUNK: Final = 1_024  # octets; a smaller BDAT counts as a junk command
LOGIN_FAILURES: Final = 3  # on one connection

# Time on the event loop, which all connections share.
COMMANDS_PER_TURN: Final = 50  # before other connections run: about a millisecond
COSTLY_SENDER: Final = 20  # commands that an expensive sender address counts for
TURN_PAUSE: Final = 0.005  # seconds between two turns of one client
ADDRESS_COST: Final = 300  # estimated microseconds; more expensive addresses are parsed on a worker thread

# Content. A dot-stuffed line is at least four octets long, one of them the dot.
DATA_OCTETS: Final = MESSAGE_SIZE + MESSAGE_SIZE // 3 + 1  # on the wire, with the dots
READ_AHEAD: Final = 64 * 1024  # octets read while a message is being stored
SLOW_START: Final = 10.0  # seconds before the rate is checked
MIN_CONTENT_RATE: Final = 500  # octets per second of a message after SLOW_START

# Timeouts, in seconds; those of commands, messages and sessions are settings.
TLS_HANDSHAKE: Final = 10.0
TLS_SHUTDOWN: Final = 2.0  # for the client's close_notify
WRITE_TIMEOUT: Final = 30.0  # for a client that does not read its replies
REPLY_LINGER: Final = 2.0  # for reading input after the last reply, so that no reset destroys it
STOPPING_LINGER: Final = 0.3  # the same during shutdown
