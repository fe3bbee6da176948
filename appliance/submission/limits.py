"""In charge of the numbers a submitting client must stay within; each says its unit and where it comes from."""

from typing import Final

from appliance.message.limits import MESSAGE_SIZE

# Of commands.
LINE: Final = 512  # octets of a command with its CRLF, RFC 5321 4.5.3.1.4
MAIL_LINE: Final = LINE + 26 + 17 + 10 + 500  # with SIZE, BODY, SMTPUTF8 and AUTH: RFC 1870, 6152, 6531, 4954
LOGIN_LINE: Final = 12_288  # octets of an AUTH command or of an answer to it, RFC 4954 4
OVERLONG: Final = 64 * 1024  # octets of an overlong line that are read and thrown away before the session ends
RCPTS: Final = 1_000  # RCPT commands in one transaction, most of them in vain

# Of the event loop's time, which all connections share.
TURN: Final = 50  # commands read before other connections have a turn: about a millisecond
COSTLY: Final = 20  # commands that a costly sender address counts for
PAUSE: Final = 0.005  # seconds between two turns of a client that has sent more than one turn's commands at once
ADDRESS_COST: Final = 300  # microseconds, as estimated, up to which an address is read at once

# Of patience.
ERRORS: Final = 20  # commands answered 5xx since the last accepted message
JUNK: Final = 100  # commands that lead nowhere since the last accepted message
SMALL_CHUNK: Final = 1_024  # octets; a BDAT of less leads nowhere either, were there a hundred of them
LOGIN_FAILURES: Final = 3  # on one connection

# Of messages. A stuffed line is at least four octets long, one of them the dot.
WIRE_SIZE: Final = MESSAGE_SIZE + MESSAGE_SIZE // 3 + 1  # octets on the wire, dots and all

# Of time, in seconds.
TLS_HANDSHAKE: Final = 10.0
WRITE: Final = 30.0  # for a client that does not read
SLOW_START: Final = 10.0  # before a message's rate is looked at
LOWEST_RATE: Final = 500  # bytes a second of a message, over the time since SLOW_START
LINGER: Final = 2.0  # for which we read on after a last word, so that the client gets to read it
LAST_LINGER: Final = 0.3  # the same when the whole program waits for it
