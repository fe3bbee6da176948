"""Why no certificate was issued and what the operator can do, from problem documents (RFC 8555 6.7). No I/O."""

from collections.abc import Sequence

import msgspec

PREFIX = "urn:ietf:params:acme:error:"
DETAIL_LIMIT = 500  # characters of what an authority says

BAD_NONCE = "badNonce"
NO_ACCOUNT = "accountDoesNotExist"


class NotIssued(Exception):
    """No certificate was issued: why, what to do, and for how many seconds the authority wants no request."""

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


# Reason and advice, by the types of RFC 8555 6.7; {0} is the name, or the names, concerned.
_WORDS_BY_TYPES: dict[str, tuple[str, str]] = {
    "connection": (
        "port 80 of {0} is not reached from outside",
        "Let port 80 of {0} lead to acme.bind: look at the DNS record, the firewall and any NAT.",
    ),
    "dns": (
        "the authority finds no address of {0} in DNS",
        "Publish an A or AAAA record for {0} that leads to this machine, or take it out of acme.names.",
    ),
    "unauthorized incorrectResponse": (
        "what answers on port 80 of {0} is not this server",
        "Let port 80 of {0} lead to acme.bind, or have what is there pass on /.well-known/acme-challenge/.",
    ),
    "caa": (
        "a CAA record in DNS forbids this authority to issue for {0}",
        "Change the CAA record of {0}, or choose another authority with acme.directory.",
    ),
    "rejectedIdentifier unsupportedIdentifier": (
        "the authority does not issue for {0}",
        "Use names under a public domain of yours: acme.names, server.hostname, http.base_url.",
    ),
    "rateLimited": ("the authority has had too many requests", "Nothing: it is asked again when it allows."),
    "externalAccountRequired": (
        "the authority wants an account that was made with it beforehand",
        "Choose an authority that does not, with acme.directory.",
    ),
    "userActionRequired": ("the authority wants something done by its customer", "Read what it says, and do it."),
    "invalidContact unsupportedContact": (
        "the authority does not accept the address in acme.email",
        "Correct acme.email.",
    ),
    "accountDoesNotExist": ("the authority does not know the account", ""),
    "serverInternal": ("the authority has trouble of its own", "Nothing: it is asked again."),
}
_WORDS = {kind: words for kinds, words in _WORDS_BY_TYPES.items() for kind in kinds.split()}
# RFC 8555 6.7 has "unauthorized" also for an account that lacks a permission, which port 80 has nothing to do with.
_ACCOUNT_UNAUTHORIZED = (
    "the authority refuses the account",
    "Ask the authority why; a new account is made without the files account.key and state.json in data_dir/acme, on"
    " PostgreSQL without the rows of acme_records.",
)


def explain(
    problem: Problem, names: Sequence[str], *, validating: bool = False, retry_after: float | None = None
) -> NotIssued:
    """The error for a problem document; `validating` when it is about the proof for a name."""
    first = problem.subproblems[0] if problem.subproblems else problem  # it says more than "compound"
    about = first.identifier.value if first.identifier and first.identifier.value else ", ".join(names)
    words, advice = _WORDS.get(first.kind, ("the authority refuses", ""))
    if first.kind == "unauthorized" and not validating:
        words, advice = _ACCOUNT_UNAUTHORIZED
    text, said = words.format(about), " ".join(filter(None, (first.detail, first.instance))) or first.kind
    if detail := " ".join("".join(c if c.isprintable() else " " for c in said).split()):
        text += f": {detail if len(detail) <= DETAIL_LIMIT else detail[: DETAIL_LIMIT - 1] + '…'}"
    return NotIssued(text, advice.format(about), kind=problem.kind, retry_after=retry_after)
