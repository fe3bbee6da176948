"""MTA-STS (RFC 8461): the TXT record that announces a policy, the policy, and how it is fetched over HTTPS.

The policy's host belongs to the owner of the recipient's domain, so its addresses are checked like those of mail
servers, and the address that was checked is the one dialled. No redirect is followed, by the RFC and for this reason.
"""

import re
import ssl
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from enum import StrEnum

import trio

from appliance.dns.resolver import LookupFailed, NotAsked, Resolver, host_addresses
from appliance.net.address_policy import Address, Network, refusal
from appliance.net.dial import Shortage, raise_if_short
from appliance.net.http import BadResponse, ClosedEarly, TooLong, send_request

POLICY_AGE_LIMIT = 31_557_600  # seconds, one year: the most that RFC 8461 3.2 allows
POLICY_MX_LIMIT = 100  # patterns of one policy that are read; no real one has as many
POLICY_TIMEOUT = 10.0  # seconds for all of it, DNS included; RFC 8461 3.3 suggests a minute, and mail waits meanwhile
POLICY_BYTES = 64 * 1024  # bytes, as RFC 8461 3.3 suggests; real policies have two hundred
POLICY_ADDRESSES = 2  # addresses tried
POLICY_PORT = 443

_RECORD = "v=STSv1;"
_ID = re.compile(r"[A-Za-z0-9]{1,32}")  # RFC 8461 3.1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_AGE = re.compile(r"[0-9]{1,10}")
_MX = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class PolicyMode(StrEnum):
    ENFORCE = "enforce"  # verified TLS with the hosts it names, or no delivery
    TESTING = "testing"  # failures are only reported
    NONE = "none"  # it has no policy any more


@dataclass(frozen=True, slots=True)
class Policy:
    mode: PolicyMode
    mx: tuple[str, ...]  # lower case; `*.example.com` stands for one label more
    max_age: int  # seconds

    def names(self, host: str) -> bool:
        """Whether this MX host is one of those the policy names (RFC 8461 4.1)."""
        host = host.lower().rstrip(".")
        return host in self.mx or f"*.{host.partition('.')[2]}" in self.mx


class BadPolicy(ValueError):
    """A policy that cannot be used, with the reason in words."""


def policy_id(texts: tuple[str, ...]) -> str | None:
    """The id that the TXT records at `_mta-sts.` announce; None unless exactly one of them does (RFC 8461 3.1)."""
    records = [text for text in texts if text.startswith(_RECORD)]
    if len(records) != 1:
        return None
    fields = [part.strip(" \t") for part in records[0].split(";")]
    fields = fields[:-1] if fields[-1] == "" else fields
    pairs = [part.partition("=") for part in fields[1:]]
    if not all(_NAME.fullmatch(name) and sign and value for name, sign, value in pairs):
        return None
    found = next((value for name, _, value in pairs if name == "id"), "")
    return found if _ID.fullmatch(found) else None


def read_policy(text: str) -> Policy:
    """Parse a policy file. Unknown keys are ignored, of a repeated key the first counts (RFC 8461 3.2)."""
    pairs: list[tuple[str, str]] = []
    for line in (each for each in text.replace("\r\n", "\n").split("\n") if each.strip(" \t")):
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


# ---- fetching

Dial = Callable[[Address, int], Awaitable[trio.abc.Stream]]


class NoPolicy(Exception):
    """A policy that could not be fetched, with the reason in words."""


async def _dial(address: Address, port: int) -> trio.abc.Stream:
    return await trio.open_tcp_stream(str(address), port)


@dataclass(frozen=True, slots=True)
class PolicyFetcher:
    """Fetches policies; `context` has to verify certificates and their names."""

    resolver: Resolver
    context: ssl.SSLContext
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    port: int = POLICY_PORT
    dial: Dial = _dial
    timeout: float = POLICY_TIMEOUT

    async def fetch(self, domain: str) -> str:
        """The text of a domain's policy file; raises `NoPolicy`, or `Shortage` if it could not be asked for."""
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
            # RFC 8461 3.2: a guard against text that a user of that server may have put there.
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
