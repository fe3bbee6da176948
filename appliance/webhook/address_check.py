"""In charge of where a receiver's name leads: looked up once for an attempt, and every address checked.

One refused address refuses the name: who publishes a private address beside a public one means us to dial it. What is
said of a name here is read by whoever set the URL, so it tells neither the addresses behind it, which may be known
inside the operator's network only, nor the resolver that was asked.
"""

from collections.abc import Container
from dataclasses import dataclass, field

import trio

from appliance.dns.host_addresses import host_addresses
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver
from appliance.net.address_policy import Address, Network, refusal
from appliance.system.shortage import Shortage, raise_if_short
from appliance.webhook.attempt import NotPosted
from appliance.webhook.url_policy import Target

ADDRESS_LIMIT = 64  # addresses of one name; each has to be checked, and nobody has so many
FRESH = 1.0  # seconds for which the verdict on an address holds: that long it may have become one of our own
KEPT = 10_000  # verdicts


class NotFound(NotPosted):
    """A name that leads to nowhere we may dial; `temporary` when a later look may tell otherwise."""

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary


_WORDS = {
    DnsFault.NXDOMAIN: "{} does not exist in the DNS",
    DnsFault.NODATA: "{} has no address in the DNS",
    DnsFault.TEMPORARY: "{} cannot be looked up in the DNS at the moment",
}


@dataclass(slots=True)
class Lookup:
    """Finds the addresses to dial. `allowed` admits otherwise-refused ones, `own` are those of this machine."""

    resolver: Resolver
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    _verdicts: dict[Address, tuple[str | None, float]] = field(default_factory=dict)

    async def addresses(self, target: Target) -> tuple[Address, ...]:
        """Every address of a target, each checked, in the order to try them; raises `NotFound` or `Shortage`."""
        found = (target.address,) if target.address is not None else await self._look_up(target.host)
        for address in found:
            if reason := self._reason(address, target.host):
                raise NotFound(f"{target.host} must have public addresses only: one is {reason}")
        return found

    async def _look_up(self, host: str) -> tuple[Address, ...]:
        try:
            found, _ = await host_addresses(self.resolver, host)
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            raise NotFound(_WORDS[failed.fault].format(host), temporary=failed.fault is DnsFault.TEMPORARY) from failed
        if len(found) > ADDRESS_LIMIT:
            raise NotFound(f"{host} has over {ADDRESS_LIMIT} addresses")
        return found

    def _reason(self, address: Address, host: str) -> str | None:
        """Why this address may not be dialled; the same for a moment."""
        now = trio.current_time()
        known = self._verdicts.get(address)
        if known is not None and now < known[1]:
            return known[0]
        try:
            reason = refusal(address, self.allowed, self.own)
        except OSError as fault:  # the system cannot say whether the address is our own: it is short of something
            raise_if_short(fault)
            raise NotFound(f"the addresses of {host} cannot be checked at the moment", temporary=True) from fault
        reason = reason and reason.removeprefix(f"{address} is ")
        if len(self._verdicts) >= KEPT:
            self._verdicts.clear()
        self._verdicts[address] = reason, now + FRESH
        return reason
