"""Evaluates SPF (RFC 7208): whether a client may send mail for a domain.

Limits, by 4.6.4: 10 terms that look something up, 2 of them without a result, 10 names per MX or PTR term. Syntax is
checked before any lookup, so a record with an error anywhere is a permerror. `exp=` is checked and not evaluated: its
text, which a stranger writes, has no use here.
"""

import re
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, field

from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.message.limits import DOMAIN_LENGTH
from appliance.model.received import CheckResult, SpfCheck

LOOKUPS: Final = 10  # terms, RFC 7208 4.6.4
VOID_LOOKUPS: Final = 2
NAMES_PER_TERM: Final = 10  # of MX or PTR records
SPF_CHARACTERS: Final = 4_096  # of a record; DNS answers may be longer

_VERSION: Final = re.compile(r"v=spf1(?: |\Z)", re.IGNORECASE)
_QUALIFIERS: Final = {"+": CheckResult.PASS, "-": CheckResult.FAIL, "~": CheckResult.SOFTFAIL, "?": CheckResult.NEUTRAL}
_MODIFIER: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_DIRECTIVE: Final = re.compile(r"([+?~-]?)([A-Za-z0-9]+)(.*)", re.DOTALL)
_CIDR: Final = re.compile(r"(?P<spec>.*?)(?:/(?P<v4>0|[1-9][0-9]?))?(?://(?P<v6>0|[1-9][0-9]{0,2}))?", re.DOTALL)
_MACRO: Final = re.compile(r"%(?:\{([slodiphcrtvSLODIPHCRTV])([0-9]*)(r?)([.+,/_=-]*)\}|([%_-]))", re.IGNORECASE)
_MACRO_STRING: Final = re.compile(r"(?:%(?:\{[slodiphcrtv][0-9]*r?[.+,/_=-]*\}|[%_-])|[!-$&-~])*", re.IGNORECASE)
_LABEL: Final = r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)"
_TOP_LABEL: Final = re.compile(r"\.(?![0-9]+\.?\Z)[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.?\Z")
_ENDS_IN_MACRO: Final = re.compile(r"%\{[^}]*\}\Z")
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})+\.?")
_EXPLANATION_ONLY: Final = frozenset("crt")

_Network = IPv4Network | IPv6Network
_Address = IPv4Address | IPv6Address


class SpfError(Exception):
    def __init__(self, result: CheckResult, reason: str) -> None:
        super().__init__(reason)
        self.result, self.reason = result, reason


def _permanent(reason: str) -> SpfError:
    return SpfError(CheckResult.PERMERROR, reason)


# ---- records; no I/O
class Directive(Struct, frozen=True):
    result: CheckResult
    mechanism: str
    spec: str  # domain or network; empty: the current domain
    prefixes: tuple[int, int]  # lengths for IPv4 and IPv6
    network: _Network | None = None


class Record(Struct, frozen=True):
    directives: tuple[Directive, ...]
    redirect: str | None


def parse_record(text: str) -> Record:
    """Parse a record without its version; raises SpfError for an error anywhere in it."""
    if len(text) > SPF_CHARACTERS:
        raise _permanent("the record is too long")
    directives: list[Directive] = []
    modifiers: dict[str, str] = {}
    for term in filter(None, text.split(" ")[1:]):
        modifier = _MODIFIER.fullmatch(term)
        if modifier is None:
            directives.append(_directive(term))
            continue
        name, value = modifier[1].lower(), modifier[2]
        if name in ("redirect", "exp"):
            if name in modifiers:
                raise _permanent(f"{name}= occurs twice")
            _check_spec(value)
            modifiers[name] = value
        elif not _MACRO_STRING.fullmatch(value):
            raise _permanent(f"the modifier {name!a} is not valid")
    return Record(tuple(directives), modifiers.get("redirect"))


def _directive(term: str) -> Directive:
    match = _DIRECTIVE.fullmatch(term)
    if match is None:
        raise _permanent(f"the term {term[:50]!a} is not valid")
    result, mechanism, rest = _QUALIFIERS[match[1] or "+"], match[2].lower(), match[3]
    if mechanism == "all":
        if rest:
            raise _permanent("`all` takes no argument")
        return Directive(result, mechanism, "", (32, 128))
    if mechanism in ("ip4", "ip6"):
        return Directive(result, mechanism, "", (32, 128), _network(mechanism, rest))
    if mechanism in ("include", "exists"):
        if not rest.startswith(":"):
            raise _permanent(f"`{mechanism}` needs a domain")
        _check_spec(rest[1:])
        return Directive(result, mechanism, rest[1:], (32, 128))
    if mechanism in ("a", "mx"):
        spec, prefixes = _with_prefixes(rest)
        return Directive(result, mechanism, spec, prefixes)
    if mechanism == "ptr":
        return Directive(result, mechanism, _optional_spec(rest), (32, 128))
    raise _permanent(f"the mechanism {mechanism[:50]!a} is unknown")


def _network(mechanism: str, rest: str) -> _Network:
    kind = IPv4Network if mechanism == "ip4" else IPv6Network
    text, slash, prefix = rest[1:].partition("/")
    if not rest.startswith(":") or (slash and not re.fullmatch(r"0|[1-9][0-9]{0,2}", prefix)):
        raise _permanent(f"`{mechanism}` needs an address or a network")
    try:
        if "%" in text:  # a zone id
            raise ValueError
        return kind(f"{text}/{prefix}" if slash else text, strict=False)
    except ValueError:
        raise _permanent(f"`{mechanism}` has an invalid network") from None


def _with_prefixes(rest: str) -> tuple[str, tuple[int, int]]:
    match = _CIDR.fullmatch(rest)
    assert match is not None  # noqa: S101 - every text matches
    v4, v6 = int(match["v4"] or 32) if match["v4"] else 32, int(match["v6"]) if match["v6"] else 128
    if v4 > 32 or v6 > 128:
        raise _permanent("a prefix length is too large")
    return _optional_spec(match["spec"]), (v4, v6)


def _optional_spec(rest: str) -> str:
    if not rest:
        return ""
    if not rest.startswith(":"):
        raise _permanent(f"the argument {rest[:50]!a} is not valid")
    _check_spec(rest[1:])
    return rest[1:]


def _check_spec(spec: str) -> None:
    """A domain-spec ends in a top label or in a macro (RFC 7208 7.1)."""
    if not _MACRO_STRING.fullmatch(spec) or not (_TOP_LABEL.search(spec) or _ENDS_IN_MACRO.search(spec)):
        raise _permanent(f"the domain {spec[:50]!a} is not valid")
    for macro in _MACRO.finditer(spec):
        if (macro[1] or "").lower() in _EXPLANATION_ONLY or (macro[2] and int(macro[2][:4]) == 0):
            raise _permanent(f"the macro {macro[0]!a} is not allowed in a domain")


# ---- evaluation
class _Evaluation(Struct):
    resolver: Resolver
    client: _Address
    sender: str  # local@domain
    helo: str
    _lookups: int = 0
    _voids: int = 0
    _validated: dict[str, str] = field(default_factory=dict)

    async def check(self, domain: str) -> CheckResult:
        """RFC 7208 4.6; raises SpfError."""
        record = await self._record(domain)
        if record is None:
            return CheckResult.NONE
        for directive in record.directives:
            if await self._matches(directive, domain):
                return directive.result
        if record.redirect is None:
            return CheckResult.NEUTRAL
        self._count()
        target = await self._expanded(record.redirect, domain)
        result = await self.check(target)
        if result is CheckResult.NONE:
            raise _permanent(f"redirect: {target!a} has no SPF record")
        return result

    async def _record(self, domain: str) -> Record | None:
        if not _NAME.fullmatch(domain) or len(domain) > DOMAIN_LENGTH:
            return None
        texts = await self._ask(self.resolver.txt, domain, void=False)
        records = [text for text in texts if _VERSION.match(text)]
        if len(records) > 1:
            raise _permanent(f"{domain!a} has several SPF records")
        if not records:
            return None
        if not records[0].isascii():
            raise _permanent(f"the SPF record of {domain!a} is not ASCII")
        return parse_record(records[0])

    async def _matches(self, directive: Directive, domain: str) -> bool:
        mechanism = directive.mechanism
        if mechanism == "all":
            return True
        if directive.network is not None:
            return self.client in directive.network
        self._count()
        target = await self._expanded(directive.spec, domain) if directive.spec else domain
        if mechanism == "include":
            result = await self.check(target)
            if result is CheckResult.NONE:
                raise _permanent(f"include: {target!a} has no SPF record")
            return result is CheckResult.PASS
        if mechanism == "exists":
            return bool(await self._ask(self.resolver.ipv4, target))
        if mechanism == "a":
            return await self._has_client(target, directive.prefixes)
        if mechanism == "mx":
            servers = [server for server in await self._ask(self.resolver.mx, target) if server.host]
            if len(servers) > NAMES_PER_TERM:
                raise _permanent(f"{target!a} has more than {NAMES_PER_TERM} MX records")
            for server in servers:
                if await self._has_client(server.host, directive.prefixes, void=False):
                    return True
            return False
        return any(_is_within(name, target) for name in await self._names())

    async def _has_client(self, name: str, prefixes: tuple[int, int], *, void: bool = True) -> bool:
        if isinstance(self.client, IPv4Address):
            addresses = await self._ask(self.resolver.ipv4, name, void=void)
            return any(self.client in IPv4Network((address, prefixes[0]), strict=False) for address in addresses)
        addresses = await self._ask(self.resolver.ipv6, name, void=void)
        return any(self.client in IPv6Network((address, prefixes[1]), strict=False) for address in addresses)

    async def _names(self) -> list[str]:
        """The validated names of the client (RFC 7208 5.5); a failed lookup gives none."""
        try:
            names = list(await self._ask(self.resolver.ptr, self.client.reverse_pointer))[:NAMES_PER_TERM]
        except SpfError as error:
            if error.result is CheckResult.PERMERROR:
                raise
            return []
        validated = []
        for name in names:
            try:
                if await self._has_client(name, (32, 128), void=False):
                    validated.append(name.rstrip(".").lower())
            except SpfError:
                continue
        return validated

    def _count(self) -> None:
        self._lookups += 1
        if self._lookups > LOOKUPS:
            raise _permanent(f"more than {LOOKUPS} terms need a lookup")

    async def _ask(self, lookup: Callable[[str], Awaitable[Any]], name: str, *, void: bool = True) -> tuple[Any, ...]:
        try:
            return tuple((await lookup(name)).records)
        except LookupFailed as failed:
            if failed.fault is DnsFault.TEMPORARY:
                raise SpfError(CheckResult.TEMPERROR, failed.public) from failed
        if void:
            self._voids += 1
            if self._voids > VOID_LOOKUPS:
                raise _permanent(f"more than {VOID_LOOKUPS} lookups have no result")
        return ()

    # ---- macros (RFC 7208 7)

    async def _expanded(self, spec: str, domain: str) -> str:
        pieces: list[str] = []
        at = 0
        for macro in _MACRO.finditer(spec):
            pieces += (spec[at : macro.start()], await self._macro(macro, domain))
            at = macro.end()
        text = "".join([*pieces, spec[at:]]).rstrip(".")
        if len(text) > DOMAIN_LENGTH:  # 7.3: drop labels from the left
            text = text[-DOMAIN_LENGTH - 1 :].partition(".")[2]
        return text

    async def _macro(self, macro: re.Match[str], domain: str) -> str:
        letter, digits, reverse, delimiters, escape = macro.groups()
        if escape:
            return {"%": "%", "_": " ", "-": "%20"}[escape]
        value = await self._value(letter.lower(), domain)
        if digits or reverse or delimiters:
            parts = re.split(f"[{re.escape(delimiters or '.')}]", value)
            if reverse:
                parts.reverse()
            if digits:
                parts = parts[-min(int(digits[:4]), len(parts)) :]
            value = ".".join(parts)
        return quote(value, safe="-._~") if letter.isupper() else value

    async def _value(self, letter: str, domain: str) -> str:
        local, _, sender_domain = self.sender.rpartition("@")
        if letter == "p":
            return await self._validated_name(domain)
        if letter == "i":
            if isinstance(self.client, IPv4Address):
                return str(self.client)
            return ".".join(self.client.exploded.replace(":", ""))
        v4 = isinstance(self.client, IPv4Address)
        return {
            "s": self.sender, "l": local, "o": sender_domain, "d": domain, "h": self.helo,
            "v": "in-addr" if v4 else "ip6",
        }[letter]  # fmt: skip

    async def _validated_name(self, domain: str) -> str:
        if domain not in self._validated:
            names = await self._names()
            preferred = [name for name in names if name == domain] or [
                name for name in names if _is_within(name, domain)
            ]
            self._validated[domain] = next(iter(preferred or names), "unknown")
        return self._validated[domain]


def _is_within(name: str, domain: str) -> bool:
    name, domain = name.rstrip(".").lower(), domain.rstrip(".").lower()
    return name == domain or name.endswith(f".{domain}")


async def check_spf(resolver: Resolver, client: str, sender: str, helo: str) -> SpfCheck:
    """Check a client for the domain of MAIL FROM, or of EHLO if the sender is null (RFC 7208 2.4)."""
    local, _, domain = sender.rpartition("@")
    domain = (domain if sender else helo).rstrip(".").lower()
    address = ip_address(client)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    evaluation = _Evaluation(resolver, address, f"{local or 'postmaster'}@{domain}", helo)
    try:
        return SpfCheck(await evaluation.check(domain), domain)
    except SpfError as error:
        return SpfCheck(error.result, domain, error.reason)
