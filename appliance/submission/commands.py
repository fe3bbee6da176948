"""In charge of reading command lines: a verb and its argument, paths and parameters (RFC 5321 4.1). PURE."""

import re
from typing import NamedTuple

# What no command may hold: C0, DEL, and the C1 controls as UTF-8 writes them.
_CONTROLS = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_ESMTP_PARAMETER = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([!-<>-~]+))?")
_PATH = re.compile(r" ?<([^<>]*)>(?: (.*))?")
_CHUNK = re.compile(r"([0-9]{1,20})(?: (LAST))?", re.IGNORECASE)


class NotACommand(Exception):
    """A line that is none; its argument says which kind of wrong."""


class Controls(NotACommand):
    """It holds a control character."""


class NotText(NotACommand):
    """It is not UTF-8."""


class Command(NamedTuple):
    """One command: its verb in upper case, and whatever followed the first space."""

    verb: str
    argument: str


class Path(NamedTuple):
    """The argument of MAIL or RCPT: the address without its brackets, and parameters, names in upper case."""

    address: str
    parameters: dict[str, str | None]


def read(line: bytes) -> Command:
    """The command in a line, which comes without its CRLF."""
    # RFC 5321 4.1.1: trailing white space is not significant; a tab is a control all the same.
    line = line.rstrip(b" ")
    if _CONTROLS.search(line):
        raise Controls
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise NotText from None
    verb, _, argument = text.partition(" ")
    if not verb.isascii():
        raise NotText
    return Command(verb.upper(), argument)


def path(argument: str, keyword: str) -> Path | None:
    """`FROM:<a@b> SIZE=5` taken apart; None when it is not of that form.

    The space that many clients put after the colon is taken; a path without angle brackets is not.
    """
    if argument[: len(keyword)].upper() != keyword:
        return None
    match = _PATH.fullmatch(argument, len(keyword))
    if match is None:
        return None
    parameters: dict[str, str | None] = {}
    for word in (match[2] or "").split():
        parameter = _ESMTP_PARAMETER.fullmatch(word)
        if parameter is None:
            return None
        # The same once more is no contradiction: smtplib adds SMTPUTF8 and BODY to those it was given already.
        name, value = parameter[1].upper(), parameter[2]
        if (parameters.setdefault(name, value) or "").upper() != (value or "").upper():
            return None
    return Path(match[1], parameters)


def chunk(argument: str) -> tuple[int, bool] | None:
    """The size that BDAT announces, and whether it is the last; None when it says neither (RFC 3030 2)."""
    match = _CHUNK.fullmatch(argument)
    return None if match is None else (int(match[1]), match[2] is not None)
