"""In charge of what a server says it can do: the reply to EHLO, read."""

from dataclasses import dataclass

from appliance.deliver.smtp.reply import Reply


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The extensions that matter to a sender. As it stands here: a server that knows only HELO."""

    pipelining: bool = False  # RFC 2920
    size: bool = False  # RFC 1870
    size_limit: int | None = None  # bytes a message may have, where the server says so
    eight_bit: bool = False  # RFC 6152
    smtputf8: bool = False  # RFC 6531
    starttls: bool = False  # RFC 3207
    enhanced_status_codes: bool = False  # RFC 2034
    auth: frozenset[str] = frozenset()  # RFC 4954; mechanisms in capitals


def capabilities(ehlo: Reply) -> Capabilities:
    """Read the reply to EHLO (RFC 5321 4.1.1.1): its first line is a greeting, each other one names an extension."""
    offered: dict[str, list[str]] = {}
    for line in ehlo.lines[1:]:
        # `AUTH=LOGIN PLAIN` is how AUTH was offered before RFC 2554; some servers still say it both ways.
        keyword, *parameters = line.upper().replace("AUTH=", "AUTH ", 1).split() or [""]
        offered.setdefault(keyword, []).extend(parameters)
    return Capabilities(
        pipelining="PIPELINING" in offered,
        size="SIZE" in offered,
        size_limit=_size_limit(offered.get("SIZE", [])),
        eight_bit="8BITMIME" in offered,
        smtputf8="SMTPUTF8" in offered,
        starttls="STARTTLS" in offered,
        enhanced_status_codes="ENHANCEDSTATUSCODES" in offered,
        auth=frozenset(offered.get("AUTH", [])),
    )


def _size_limit(parameters: list[str]) -> int | None:
    digits = parameters[0] if parameters else ""
    readable = digits.isascii() and digits.isdigit() and len(digits) <= 20  # RFC 1870 3: up to 20 digits
    return int(digits) or None if readable else None  # 0: no fixed limit
