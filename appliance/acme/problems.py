"""Explains problem documents (RFC 8555 6.7): why no certificate was issued, and what the operator can do. No I/O."""

from collections.abc import Sequence

import msgspec

PREFIX = "urn:ietf:params:acme:error:"
DETAIL_LIMIT = 500  # characters of an authority's own text

BAD_NONCE = "badNonce"
NO_ACCOUNT = "accountDoesNotExist"


class NotIssued(Exception):
    """No certificate was issued: the reason, the advice, and the authority's Retry-After in seconds."""

    def __init__(self, text: str, advice: str = "", *, kind: str = "", retry_after: float | None = None) -> None:
        super().__init__(text)
        self.advice, self.kind, self.retry_after = advice, kind, retry_after


class Subject(msgspec.Struct):
    value: str = ""


class Problem(msgspec.Struct):
    """A problem document (RFC 7807, RFC 8555 6.7)."""

    type: str = ""
    detail: str = ""
    instance: str = ""
    identifier: Subject | None = None
    subproblems: "list[Problem]" = msgspec.field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.type.removeprefix(PREFIX)


# Reason and advice by type (RFC 8555 6.7); {0} is the affected name or names.
_WORDS_BY_TYPES: dict[str, tuple[str, str]] = {
    "connection": (
        "the authority cannot reach port 80 of {0}",
        "Make port 80 of {0} reach acme.bind: check the DNS record, the firewall and NAT.",
    ),
    "dns": (
        "the authority finds no address of {0} in DNS",
        "Publish an A or AAAA record of this machine for {0}, or remove it from acme.names.",
    ),
    "unauthorized incorrectResponse": (
        "another server answers on port 80 of {0}",
        "Make port 80 of {0} reach acme.bind, or forward /.well-known/acme-challenge/ from there.",
    ),
    "caa": (
        "a CAA record in DNS forbids this authority to issue for {0}",
        "Change the CAA record of {0}, or set acme.directory to another authority.",
    ),
    "rejectedIdentifier unsupportedIdentifier": (
        "the authority does not issue for {0}",
        "Use names in your own public domain: acme.names, server.hostname, http.base_url.",
    ),
    "rateLimited": (
        "the authority received too many requests",
        "None: the server retries when the authority allows it.",
    ),
    "externalAccountRequired": (
        "the authority requires an existing account",
        "Set acme.directory to an authority that does not.",
    ),
    "userActionRequired": (
        "the authority requires an action by its customer",
        "Follow the instructions in its message.",
    ),
    "invalidContact unsupportedContact": (
        "the authority does not accept the address in acme.email",
        "Correct acme.email.",
    ),
    "accountDoesNotExist": ("the authority does not know the account", ""),
    "serverInternal": ("the authority has an internal error", "None: the server retries."),
}
_WORDS = {kind: words for kinds, words in _WORDS_BY_TYPES.items() for kind in kinds.split()}
# RFC 8555 6.7 uses "unauthorized" also for an account without permission, which has nothing to do with port 80.
_ACCOUNT_UNAUTHORIZED = (
    "the authority rejects the account",
    "Ask the authority why. To create a new account, delete account.key and state.json in data_dir/acme, or on"
    " PostgreSQL the rows of acme_records.",
)


def explain(
    problem: Problem, names: Sequence[str], *, validating: bool = False, retry_after: float | None = None
) -> NotIssued:
    """Return the error for a problem document; `validating` if it is about a challenge."""
    first = problem.subproblems[0] if problem.subproblems else problem  # more precise than "compound"
    about = first.identifier.value if first.identifier and first.identifier.value else ", ".join(names)
    words, advice = _WORDS.get(first.kind, ("the authority rejects the request", ""))
    if first.kind == "unauthorized" and not validating:
        words, advice = _ACCOUNT_UNAUTHORIZED
    text, stated = words.format(about), " ".join(filter(None, (first.detail, first.instance))) or first.kind
    if detail := " ".join("".join(c if c.isprintable() else " " for c in stated).split()):
        text += f": {detail if len(detail) <= DETAIL_LIMIT else detail[: DETAIL_LIMIT - 1] + '…'}"
    return NotIssued(text, advice.format(about), kind=problem.kind, retry_after=retry_after)
