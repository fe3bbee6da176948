"""Checks who sent a received message: SPF (`spf.py`), DKIM (`message/dkim_check.py`) and DMARC (RFC 7489).

The checks report and never refuse. Each has a few lookups, and all together SECONDS: what is not known by then is a
temperror, so a sender with slow DNS servers delays only its own mail, and not for long. Checks whose lookups are all
cached, as most are, run without tasks.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Final, TypeVar

import trio
from msgspec import Struct
from publicsuffixlist import PublicSuffixList

from appliance.dns.resolver import DnsFault, LookupFailed, NotRemembered, RememberedAnswers, Resolver, records_of
from appliance.inbound.spf import check_spf
from appliance.message.dkim_check import ReceivedSignature, verdict
from appliance.model.received import Authentication, CheckResult, DkimCheck, DmarcCheck, ReceivedEnvelope, SpfCheck
from appliance.times import SECOND

SECONDS: Final = 10.0  # for all lookups of a message
POLICY_CHARACTERS: Final = 4_096
DOMAINS_CACHED: Final = 4_096
_POLICIES: Final = ("none", "quarantine", "reject")
_SLOW: Final = "the sender's DNS servers did not answer in time"

T = TypeVar("T")
OnThread = Callable[..., Awaitable[Any]]
_Check = Callable[[Resolver], Awaitable[None]]


class _Policy(Struct, frozen=True):
    """A DMARC record: the policy for the From domain, and which domains align with it."""

    policy: str
    strict_dkim: bool
    strict_spf: bool


class SenderChecks:
    """The results so far; a check that does not end in time stays as it is here."""

    def __init__(
        self, envelope: ReceivedEnvelope, signatures: Sequence[ReceivedSignature], domains: Sequence[str]
    ) -> None:
        """`domains`: of the From field."""
        self.envelope = envelope
        self.spf = SpfCheck(CheckResult.TEMPERROR, (envelope.sender or envelope.helo).rpartition("@")[2], _SLOW)
        self.dkim = [(CheckResult.TEMPERROR, _SLOW) for _ in signatures]
        self.policy: _Policy | CheckResult = CheckResult.TEMPERROR
        self.signatures = signatures
        self.domain = domains[0] if len(set(domains)) == 1 else ""


async def authenticate(resolver: Resolver, checks: SenderChecks, now: int, on_thread: OnThread) -> Authentication:
    pending = await _without_lookups(resolver, checks, now, on_thread)
    if pending:
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for check in pending:
                    nursery.start_soon(check, resolver)
    return _judged(checks)


async def authenticate_from_cache(
    resolver: Resolver, checks: SenderChecks, now: int, on_thread: OnThread
) -> Authentication | None:
    """Return the results if no check needs a lookup."""
    return None if await _without_lookups(resolver, checks, now, on_thread) else _judged(checks)


async def _without_lookups(resolver: Resolver, checks: SenderChecks, now: int, on_thread: OnThread) -> list[_Check]:
    """Run the checks whose lookups are cached; return the others."""
    remembered, pending = RememberedAnswers(resolver), list[_Check]()
    signed = [partial(_dkim, checks, number, now, on_thread) for number in range(len(checks.signatures))]
    for check in (partial(_spf, checks), partial(_policy, checks), *signed):
        try:
            await check(remembered)
        except NotRemembered:
            pending.append(check)
    return pending


def unchecked(reason: str) -> Authentication:
    """The result for a message that could not be read."""
    spf, dmarc = SpfCheck(CheckResult.TEMPERROR, "", reason), DmarcCheck(CheckResult.TEMPERROR, "", None, reason)
    return Authentication(spf, (), dmarc)


async def _spf(checks: SenderChecks, resolver: Resolver) -> None:
    envelope = checks.envelope
    checks.spf = await check_spf(resolver, envelope.client, envelope.sender, envelope.helo)


async def _dkim(checks: SenderChecks, number: int, now: int, on_thread: OnThread, resolver: Resolver) -> None:
    signature = checks.signatures[number]
    try:
        records = () if signature.fault else await records_of(resolver.txt, signature.key_name)
    except LookupFailed as failed:
        checks.dkim[number] = CheckResult.TEMPERROR, failed.public
        return
    checks.dkim[number] = await on_thread(partial(verdict, signature, records, now // SECOND))


async def _policy(checks: SenderChecks, resolver: Resolver) -> None:
    """Find the record of the From domain, or of its organizational domain (RFC 7489 6.6.3)."""
    if not checks.domain:
        checks.policy = CheckResult.PERMERROR
        return
    parent = organizational(checks.domain)
    names = [checks.domain] if parent in ("", checks.domain) else [checks.domain, parent]
    for name in names:
        try:
            texts = (await resolver.txt(f"_dmarc.{name}")).records
        except LookupFailed as failed:
            if failed.fault is DnsFault.TEMPORARY:
                checks.policy = CheckResult.TEMPERROR
                return
            continue
        records = [text for text in texts if text.partition(";")[0].replace(" ", "") == "v=DMARC1"]
        if records:
            checks.policy = _read_policy(records, is_parent=name != checks.domain)
            return
    checks.policy = CheckResult.NONE


def _read_policy(records: list[str], *, is_parent: bool) -> _Policy | CheckResult:
    """Return the policy of a record; several records or an invalid one mean no policy (RFC 7489 6.6.3)."""
    if len(records) > 1 or len(records[0]) > POLICY_CHARACTERS:
        return CheckResult.NONE
    tags: dict[str, str] = {}
    for part in records[0].split(";"):
        name, _, value = part.partition("=")
        tags.setdefault(name.strip().lower(), value.strip().lower())
    policy = tags.get("p", "none" if "rua" in tags else "")
    if is_parent:
        policy = tags.get("sp", policy)
    if policy not in _POLICIES:
        return CheckResult.NONE
    return _Policy(policy, strict_dkim=tags.get("adkim") == "s", strict_spf=tags.get("aspf") == "s")


def _judged(checks: SenderChecks) -> Authentication:
    """Combine the results: DMARC passes if SPF or DKIM passes for a domain that aligns with the From field."""
    policy = checks.policy if isinstance(checks.policy, _Policy) else None
    strict_dkim, strict_spf = (policy.strict_dkim, policy.strict_spf) if policy else (False, False)
    dkim = tuple(
        DkimCheck(result, item.domain, item.selector, _aligned(item.domain, checks.domain, strict_dkim), reason)
        for item, (result, reason) in zip(checks.signatures, checks.dkim, strict=True)
    )
    aligned = [check.result for check in dkim if check.aligned]
    if _aligned(checks.spf.domain, checks.domain, strict_spf):
        aligned.append(checks.spf.result)
    return Authentication(checks.spf, dkim, _dmarc(checks, policy, aligned))


def _dmarc(checks: SenderChecks, policy: _Policy | None, aligned: list[CheckResult]) -> DmarcCheck:
    if checks.policy is CheckResult.PERMERROR:
        return DmarcCheck(CheckResult.PERMERROR, "", None, "the message does not have one From domain")
    if checks.policy is CheckResult.TEMPERROR:
        return DmarcCheck(CheckResult.TEMPERROR, checks.domain, None, "DNS did not answer")
    if policy is None:
        return DmarcCheck(CheckResult.NONE, checks.domain, None, "the From domain has no DMARC record")
    if CheckResult.PASS in aligned:
        return DmarcCheck(CheckResult.PASS, checks.domain, policy.policy)
    if CheckResult.TEMPERROR in aligned:
        return DmarcCheck(CheckResult.TEMPERROR, checks.domain, policy.policy, "SPF or DKIM could not be checked")
    reason = "neither SPF nor DKIM passes for a domain that aligns with the From domain"
    return DmarcCheck(CheckResult.FAIL, checks.domain, policy.policy, reason)


def _aligned(domain: str, from_domain: str, strict: bool) -> bool:
    if not domain or not from_domain:
        return False
    return domain == from_domain or (not strict and organizational(domain) == organizational(from_domain) != "")


@lru_cache(DOMAINS_CACHED)
def organizational(domain: str) -> str:
    """Return the registered domain, such as `example.co.uk` (RFC 7489 3.2); "" for a public suffix."""
    return _suffixes().privatesuffix(domain) or ""


@cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()  # 0.1 s
