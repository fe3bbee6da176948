"""The TLS that a connection to a mail server needs: the demand of its owner (DANE, MTA-STS) or of the operator, and the
plan for the SMTP client that meets it.

DANE (RFC 7672) applies if DNSSEC authenticates the MX records, the addresses and the TLSA records, and then it alone
decides: MTA-STS must not override a failure of DANE (RFC 8461 2). If the TLSA records are unusable, DANE demands
encryption only, and MTA-STS may demand more. After a failed TLSA lookup the host gets no mail for now (RFC 7672 2.1.2).
A policy that cannot be fetched counts as absent (RFC 8461 3.3), unless an earlier one is still valid.

The policy's host belongs to the owner of the recipient's domain, so its addresses are checked like those of mail
servers. No redirect is followed (RFC 8461 3.3).
"""

import hashlib
import re
import ssl
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import trio
from msgspec import Struct

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.config.settings import RelayTls
from appliance.deliver.route import Host, Relay, Route
from appliance.deliver.smtp.tls import (
    CHAIN_LENGTH,
    DANE,
    MTA_STS,
    PKIX,
    TlsPlan,
    TrustStore,
    Verifier,
    can_verify,
    opportunistic_context,
)
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver, host_addresses
from appliance.dns.wire import Tlsa
from appliance.net.address_policy import Address, Network, refusal
from appliance.net.dial import Shortage, raise_if_short
from appliance.net.http import BadResponse, ClosedEarly, TooLong, send_request

# ---- DANE: does a TLSA record name one of the server's certificates?

# Usages, RFC 7218 2.1. DANE-EE(3) names the server's own certificate or key, whatever its name and dates. DANE-TA(2)
# names an authority, to which the chain must lead, with valid dates and name. RFC 7672 3.1.3 excludes the others.
_TA, _EE = 2, 3
_CERTIFICATE, _KEY = 0, 1  # selectors, RFC 7218 2.2
# Matching types, RFC 7218 2.3: the form of the selected bytes in the record.
_MATCHING: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda selected: hashlib.sha256(selected).digest(),
    2: lambda selected: hashlib.sha512(selected).digest(),
}


def usable(records: Iterable[Tlsa]) -> tuple[Tlsa, ...]:
    """The records that can verify a certificate. Without any, DANE only demands encryption (RFC 7672 2.2)."""
    return tuple(
        record
        for record in records
        if record.usage in (_TA, _EE) and record.selector in (_CERTIFICATE, _KEY) and record.matching in _MATCHING
    )


def verifier(records: tuple[Tlsa, ...], further_names: tuple[str, ...] = ()) -> Verifier:
    """Verify a chain by these records; with DANE-TA a certificate may have one of `further_names` (RFC 7672 3.2.2)."""

    def verify(chain: tuple[bytes, ...], name: str) -> str | None:
        if not chain:
            return "the server showed no certificate"
        if any(matches(record, chain[0]) for record in records if record.usage == _EE):
            return None
        named = [record for record in records if record.usage == _TA]
        # A server need not send an authority whose whole certificate is in DNS.
        whole = (record.data for record in named if (record.selector, record.matching) == (_CERTIFICATE, 0))
        authorities = [der for der in (*chain[1:], *whole) if any(matches(record, der) for record in named)]
        authorities = [der for der in authorities[:CHAIN_LENGTH] if can_verify(der)]
        fault: str | None = "the server's certificate is none that its TLSA records name"
        for allowed in (name, *further_names) if authorities else ():
            if (fault := TrustStore(authorities).verify(chain, allowed)) is None:
                break
        return fault

    return verify


def matches(record: Tlsa, certificate: bytes) -> bool:
    try:
        selected = certificate if record.selector == _CERTIFICATE else public_key(certificate)
    except ValueError:
        return False
    return _MATCHING[record.matching](selected) == record.data


def public_key(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo of a certificate, byte for byte (RFC 5280 4.1); a library may re-encode the key."""
    _, body, _ = _element(certificate, 0)
    _, position, _ = _element(certificate, body)  # into TBSCertificate
    tag, _, end = _element(certificate, position)
    position = end if tag == 0xA0 else position  # the version, which is optional
    for _ in ("serialNumber", "signature", "issuer", "validity", "subject"):
        position = _element(certificate, position)[2]
    return certificate[position : _element(certificate, position)[2]]


def _element(data: bytes, start: int) -> tuple[int, int, int]:
    """The tag of the DER element at `start`, where its contents begin, and where it ends."""
    if len(data) < start + 2:
        raise ValueError("a certificate that ends too early")
    length, contents = data[start + 1], start + 2
    if length > 0x80:
        contents += length - 0x80
        length = int.from_bytes(data[start + 2 : contents], "big")
    if length == 0x80 or contents + length > len(data):
        raise ValueError("a certificate that ends too early")
    return data[start], contents, contents + length


# ---- MTA-STS (RFC 8461): the TXT record that announces a policy, and the policy

POLICY_AGE_LIMIT = 31_557_600  # seconds, one year: the maximum of RFC 8461 3.2
POLICY_MX_LIMIT = 100  # patterns read of one policy
POLICY_TIMEOUT = 10.0  # seconds, with DNS; RFC 8461 3.3 suggests a minute, but the message is delayed meanwhile
POLICY_BYTES = 64 * 1024  # as RFC 8461 3.3 suggests; real policies have 200 bytes
POLICY_ADDRESSES = 2  # addresses tried
POLICY_PORT = 443
_ID = re.compile(r"[A-Za-z0-9]{1,32}")  # RFC 8461 3.1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_AGE = re.compile(r"[0-9]{1,10}")
_MX = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class PolicyMode(StrEnum):
    ENFORCE = "enforce"  # verified TLS with the hosts it names, or no delivery
    TESTING = "testing"  # failures are only reported
    NONE = "none"  # the domain has ended its policy


class Policy(Struct, frozen=True):
    mode: PolicyMode
    mx: tuple[str, ...]  # lower case; `*` is one label
    max_age: int  # seconds

    def names(self, host: str) -> bool:
        """Whether the policy names this MX host (RFC 8461 4.1)."""
        host = host.lower().rstrip(".")
        return host in self.mx or f"*.{host.partition('.')[2]}" in self.mx


class BadPolicy(ValueError):
    """A policy that cannot be used, and why."""


def policy_id(texts: tuple[str, ...]) -> str | None:
    """The id that the TXT records at `_mta-sts.` announce; None unless exactly one of them does (RFC 8461 3.1)."""
    records = [text for text in texts if text.startswith("v=STSv1;")]
    if len(records) != 1:
        return None
    fields = [part.strip(" \t") for part in records[0].split(";")]
    fields = fields[:-1] if fields[-1] == "" else fields
    pairs = [part.partition("=") for part in fields[1:]]
    if not all(_NAME.fullmatch(name) and sign and value for name, sign, value in pairs):
        return None
    announced = next((value for name, _, value in pairs if name == "id"), "")
    return announced if _ID.fullmatch(announced) else None


def read_policy(text: str) -> Policy:
    """Parse a policy file. Unknown keys are ignored; the first of a repeated key counts (RFC 8461 3.2)."""
    pairs: list[tuple[str, str]] = []
    for line in (line for line in text.replace("\r\n", "\n").split("\n") if line.strip(" \t")):
        name, colon, value = line.partition(":")
        if not (colon and _NAME.fullmatch(name) and value.isprintable()):
            raise BadPolicy(f"it has a line that is no key and value: {line[:60]!a}")
        pairs.append((name, value.strip(" ")))
    first = dict(reversed(pairs))
    if first.get("version") != "STSv1":
        raise BadPolicy("it does not say version: STSv1")
    if first.get("mode") not in set(PolicyMode):
        raise BadPolicy("it has no mode that we know")
    if not _AGE.fullmatch(first.get("max_age", "")):
        raise BadPolicy("it has no max_age")
    mode = PolicyMode(first["mode"])
    mx = [value for key, value in pairs if key == "mx"]
    for value in mx:
        if len(value) > 253 or not _MX.fullmatch(value.lower()):
            raise BadPolicy(f"it names an mx that is no host: {value[:60]!a}")
    if not mx and mode is not PolicyMode.NONE:
        raise BadPolicy("it names no mx")
    return Policy(mode, tuple(map(str.lower, mx[:POLICY_MX_LIMIT])), min(int(first["max_age"]), POLICY_AGE_LIMIT))


class NoPolicy(Exception):
    """A domain has no policy, or it could not be fetched, and why."""


async def _dial(address: Address, port: int) -> trio.abc.Stream:
    return await trio.open_tcp_stream(str(address), port)


class PolicyFetcher(Struct, frozen=True):
    """Fetches policies; `context` must verify certificates and their names."""

    resolver: Resolver
    context: ssl.SSLContext
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    port: int = POLICY_PORT
    dial: Callable[[Address, int], Awaitable[trio.abc.Stream]] = _dial
    timeout: float = POLICY_TIMEOUT

    async def fetch(self, domain: str) -> str:
        """The text of a domain's policy file; raises `NoPolicy`, or `Shortage` if this machine lacks resources."""
        host = f"mta-sts.{domain}"
        try:
            with trio.fail_after(self.timeout):
                return await self._fetch(host)
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            raise NoPolicy(failed.text) from failed
        except trio.TooSlowError:
            raise NoPolicy(f"{host} did not answer within {self.timeout:g} s") from None

    async def _fetch(self, host: str) -> str:
        fault = NoPolicy(f"{host} has no address")
        for address in (await host_addresses(self.resolver, host))[0][:POLICY_ADDRESSES]:
            try:
                if reason := refusal(address, self.allowed, self.own):
                    fault = NoPolicy(reason)
                    continue
                return await self._fetch_from(address, host)
            except (OSError, trio.BrokenResourceError, ssl.SSLError, BadResponse) as cause:
                raise_if_short(cause, str(address))
                fault = NoPolicy(f"{host} at {address}: {cause.__cause__ or cause}")
        raise fault

    async def _fetch_from(self, address: Address, host: str) -> str:
        connection = await self.dial(address, self.port)
        stream = trio.SSLStream(connection, self.context, server_hostname=host, https_compatible=True)
        headers = [("Host", host), ("Accept", "text/plain")]
        try:
            answer = await send_request(stream, "GET", "/.well-known/mta-sts.txt", headers)
            if answer.status != 200:
                raise NoPolicy(f"{host} answered {answer.status}")
            # RFC 8461 3.2: a guard against text uploaded by a user of that server.
            kinds = [kind.partition(b";")[0].strip().lower() for kind in answer.all(b"content-type")]
            if kinds != [b"text/plain"]:
                raise NoPolicy(f"{host} sent no text/plain")
            return (await answer.body(POLICY_BYTES)).decode("utf-8")
        except TooLong:
            raise NoPolicy(f"the policy at {host} is over {POLICY_BYTES} bytes") from None
        except ClosedEarly:
            raise NoPolicy(f"{host} closed the connection early") from None
        except UnicodeDecodeError:
            raise NoPolicy(f"the policy at {host} is no UTF-8") from None
        finally:
            await trio.aclose_forcefully(stream)


# ---- demands and plans

POLICIES_KEPT = 10_000  # domains remembered
POLICY_LEAST_AGE = 300  # seconds a policy is kept at least: otherwise every message would fetch it
POLICY_RETRY = 300  # seconds until a policy that could not be fetched is fetched again, RFC 8461 3.3


class TlsLevel(StrEnum):
    OFF = "off"  # by the operator's setting
    OPPORTUNISTIC = "opportunistic"  # if the server offers it; any certificate
    ENCRYPTED = "encrypted"  # any certificate
    VERIFIED = "verified"  # by MTA-STS or for a relay: a certificate of a trusted authority, for one of `names`
    DANE = "dane"  # a certificate that one of `records` names
    NOT_NOW = "not now"  # no mail to this host at present


@dataclass(frozen=True, slots=True)
class TlsDemand:
    level: TlsLevel
    reason: str
    names: tuple[str, ...] = ()
    records: tuple[Tlsa, ...] = field(default=(), repr=False)


def relay_demand(relay: Relay) -> TlsDemand:
    if relay.tls in (RelayTls.REQUIRED, RelayTls.IMPLICIT):
        return TlsDemand(TlsLevel.VERIFIED, "the relay's TLS is required by configuration", (relay.host,))
    level = TlsLevel.OFF if relay.tls is RelayTls.OFF else TlsLevel.OPPORTUNISTIC
    return TlsDemand(level, f"the relay's TLS is {relay.tls.value} by configuration")


def mta_sts_demand(policy: Policy | NoPolicy, domain: str, host: str) -> TlsDemand:
    if isinstance(policy, NoPolicy):
        return TlsDemand(TlsLevel.OPPORTUNISTIC, f"{domain} has no TLS policy: {policy}")
    if policy.mode is not PolicyMode.ENFORCE:
        return TlsDemand(TlsLevel.OPPORTUNISTIC, f"the MTA-STS policy of {domain} is in mode {policy.mode.value}")
    if not policy.names(host):
        return TlsDemand(TlsLevel.NOT_NOW, f"the MTA-STS policy of {domain} does not name {host}")
    return TlsDemand(TlsLevel.VERIFIED, f"the MTA-STS policy of {domain} is enforced", (host,))


class TlsPolicies:
    """Finds and caches the demands of domains; `fetch` returns the text of a domain's policy or raises `NoPolicy`."""

    def __init__(self, resolver: Resolver, fetch: Callable[[str], Awaitable[str]]) -> None:
        self._resolver, self._fetch = resolver, fetch
        self._kept: TtlCache[str, tuple[str, Policy]] = TtlCache(POLICIES_KEPT, POLICY_LEAST_AGE)  # with its id
        self._failed: TtlCache[tuple[str, str], NoPolicy] = TtlCache(POLICIES_KEPT, POLICY_RETRY)  # by domain and id
        self._fetching: SingleFlight[tuple[str, str], Policy | NoPolicy] = SingleFlight()

    async def demand(self, route: Route, host: Host) -> TlsDemand:
        if route.relay is not None:
            return relay_demand(route.relay)
        by_dane = await self._dane(route, host)
        if by_dane is not None and by_dane.level is not TlsLevel.ENCRYPTED:
            return by_dane
        demand = mta_sts_demand(await self.policy(route.domain), route.domain, host.name)
        return by_dane if by_dane is not None and demand.level is TlsLevel.OPPORTUNISTIC else demand

    async def _dane(self, route: Route, host: Host) -> TlsDemand | None:
        if not (route.authentic and host.authentic):
            return None
        try:
            answer = await self._resolver.tlsa(f"_{route.port}._tcp.{host.name}")
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            text = f"the TLSA records of {host.name} cannot be looked up: {failed.public}"
            return TlsDemand(TlsLevel.NOT_NOW, text) if failed.fault is DnsFault.TEMPORARY else None
        if not answer.authentic:
            return None
        if not (good := usable(answer.records)):
            return TlsDemand(TlsLevel.ENCRYPTED, f"{host.name} publishes TLSA records, none of them usable")
        # RFC 7672 3.2.2: the certificate under a DANE-TA may be for the host or for the recipients' domain.
        return TlsDemand(TlsLevel.DANE, f"{host.name} publishes TLSA records", (host.name, route.domain), good)

    async def policy(self, domain: str) -> Policy | NoPolicy:
        """The MTA-STS policy of a domain, or the reason for its absence."""
        known_id, known = self._kept.get(domain) or ("", None)
        try:
            announced = policy_id((await self._resolver.txt(f"_mta-sts.{domain}")).records)
        except NotAsked as failed:  # a policy may exist: without descriptors, mail must not go unencrypted
            raise Shortage(failed.lack) from failed
        except LookupFailed:
            announced = None
        if known is not None and announced in (known_id, None):
            return known
        if announced is None:
            return NoPolicy("none is announced")
        fetched = await self._fetching.run((domain, announced), partial(self._fetch_and_keep, domain, announced))
        return known if known is not None and isinstance(fetched, NoPolicy) else fetched

    async def _fetch_and_keep(self, domain: str, announced: str) -> Policy | NoPolicy:
        if (fault := self._failed.get((domain, announced))) is not None:
            return fault
        try:
            policy = read_policy(await self._fetch(domain))
        except (NoPolicy, BadPolicy) as failed:
            fault = NoPolicy(f"the one announced is of no use: {failed}")
            self._failed.put((domain, announced), fault)
            return fault
        self._kept.put(domain, (announced, policy), max(policy.max_age, POLICY_LEAST_AGE))
        return policy


@dataclass(slots=True)
class TlsChoice:
    """Finds the plan that meets a demand; `verifying` has the roots that count."""

    policies: TlsPolicies
    verifying: ssl.SSLContext
    _opportunistic: ssl.SSLContext = field(default_factory=opportunistic_context)
    _trust: TrustStore | None = None  # verifies opportunistic connections; read when needed

    def plan(self, demand: TlsDemand, route: Route, host: Host) -> TlsPlan | None:
        """The plan that meets a demand; None: without TLS."""
        if demand.level is TlsLevel.OFF:
            return None
        if demand.level is TlsLevel.VERIFIED:
            implicit = route.relay is not None and route.relay.tls is RelayTls.IMPLICIT
            by = MTA_STS if route.relay is None else PKIX
            return TlsPlan(self.verifying, host.name, required=True, implicit=implicit, by=by)
        if demand.level is TlsLevel.DANE:
            verify = verifier(demand.records, demand.names)
            return TlsPlan(self._opportunistic, host.name, required=True, verify=verify, must_verify=True, by=DANE)
        if self._trust is None:
            self._trust = TrustStore(self.verifying.get_ca_certs(binary_form=True))
        required = demand.level is TlsLevel.ENCRYPTED
        return TlsPlan(self._opportunistic, host.name, required=required, verify=self._trust.verify)
