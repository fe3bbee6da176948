"""The addresses of a host: both families, in turn, and cheap once they are known."""

from ipaddress import ip_address

import pytest
import trio

from appliance.dns.host_addresses import host_addresses
from appliance.dns.resolver import DnsFault, LookupFailed
from tests.fakes.dns import SPOILED, DnsServer, Trouble, Zone, ZoneResolver, serving

ZONE: Zone = {
    "both.example": {"A": ["192.0.2.1", "192.0.2.2"], "AAAA": ["2001:db8::1"]},
    "four.example": {"A": ["192.0.2.1"]},
    "half.example": {"A": ["192.0.2.1"], "AAAA": Trouble.SERVFAIL},
    "mute.example": {"A": ["192.0.2.1"], "AAAA": Trouble.SILENCE},
    "late.example": {"A": Trouble.SILENCE_ONCE},
    "broken.example": {"A": Trouble.SERVFAIL},
}


async def test_the_families_take_turns() -> None:
    """IPv6 first, then IPv4, and so on; one family is enough, even where the other is in trouble."""
    resolver = ZoneResolver(ZONE)
    found, _ = await host_addresses(resolver, "both.example")
    assert found == tuple(map(ip_address, ("2001:db8::1", "192.0.2.1", "192.0.2.2")))
    for name in ("four.example", "half.example"):
        assert (await host_addresses(resolver, name))[0] == (ip_address("192.0.2.1"),)


async def test_a_family_without_an_answer_is_not_waited_for_long() -> None:
    """With the addresses of one family in hand the other has a second, not the time a question may take."""
    async with serving(DnsServer(ZONE)) as resolver:
        began = trio.current_time()
        found, _ = await host_addresses(resolver, "mute.example")
        assert found == (ip_address("192.0.2.1"),)
        assert trio.current_time() - began < 3


async def test_a_family_without_addresses_does_not_hurry_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """That there is no IPv6 does not cut short the question for IPv4, whose first packet may be lost."""
    monkeypatch.setattr("appliance.dns.host_addresses.OTHER_FAMILY_TIMEOUT", 0.0)
    monkeypatch.setattr("appliance.dns.resolver.QUERY_TIMEOUT", 0.2)
    async with serving(DnsServer(ZONE)) as resolver:
        found, _ = await host_addresses(resolver, "late.example")
        assert found == tuple(map(ip_address, SPOILED[Trouble.SILENCE_ONCE]))


@pytest.mark.parametrize(
    ("name", "fault"), [("broken.example", DnsFault.TEMPORARY), ("none.example", DnsFault.NXDOMAIN)]
)
async def test_trouble_counts_for_more_than_absence(name: str, fault: DnsFault) -> None:
    """Without any address the reason is told, and a temporary failure goes before absence."""
    with pytest.raises(LookupFailed) as caught:
        await host_addresses(ZoneResolver(ZONE), name)
    assert caught.value.fault is fault


async def test_what_is_remembered_is_the_same() -> None:
    """The second time nothing is asked, and the addresses are the same in the same order."""
    dns = DnsServer(ZONE)
    async with serving(dns) as resolver:
        assert not resolver.remembers_addresses("both.example")
        first = await host_addresses(resolver, "both.example")
        assert resolver.remembers_addresses("Both.example.")
        assert await host_addresses(resolver, "both.example") == first
        assert sum(dns.asked.values()) == 2


async def test_what_may_not_be_kept_is_not_remembered() -> None:
    """A record without a time to live is asked for again."""
    dns = DnsServer(ZONE, ttl=0, negative_ttl=0)
    async with serving(dns) as resolver:
        for _ in range(2):
            await host_addresses(resolver, "both.example")
            assert not resolver.remembers_addresses("both.example")
        assert sum(dns.asked.values()) == 4
