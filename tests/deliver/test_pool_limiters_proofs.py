"""Whose server answers at an address: by its certificate, by its reverse name, never by what an MX record calls it."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from appliance.deliver.pool_limiters import ADDRESSES_KEPT, ASKED_EVERY, PROVED_FOR, TROUBLED_EVERY, Proofs
from appliance.deliver.providers import ProviderPools
from tests.fakes.dns import Trouble, ZoneResolver

GOOGLE = "aspmx.l.google.com"
ADDRESS = "192.0.2.27"
REVERSE = "27.2.0.192.in-addr.arpa"
ZONE = {REVERSE: {"PTR": ["fra-in-f27.1e100.net."]}, "fra-in-f27.1e100.net": {"A": [ADDRESS]}}


async def found(zone: dict[str, dict[str, list[str]]], host: str = GOOGLE, address: str = ADDRESS) -> str | None:
    """The provider at an address that answered without a good certificate, once its reverse name was looked up."""
    proofs = Proofs(ZoneResolver(zone), ProviderPools())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proofs.run)
        proofs.answered(host, address, verified=False)
        assert proofs.provider_at(address) is None
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return proofs.provider_at(address)


async def test_a_name_alone_proves_nothing(autojump_clock: MockClock) -> None:
    """A server that answers under a provider's host name, without a certificate or a reverse name, proves nothing."""
    assert await found({}) is None


async def test_a_certificate_for_its_name_is_a_proof(autojump_clock: MockClock) -> None:
    """At once, without any look-up, for some hours from each time it was shown."""
    proofs = Proofs(ZoneResolver({}), ProviderPools())
    proofs.answered(GOOGLE, ADDRESS, verified=True)
    assert proofs.provider_at(ADDRESS) == "google"
    assert proofs.provider_at("192.0.2.28") is None
    await trio.sleep(PROVED_FOR - 1)
    assert proofs.provider_at(ADDRESS) == "google"
    await trio.sleep(1)
    assert proofs.provider_at(ADDRESS) is None


async def test_a_certificate_for_another_name_proves_nothing_of_a_provider(autojump_clock: MockClock) -> None:
    """A good certificate for the host's own name makes it no provider's."""
    resolver = ZoneResolver(ZONE)
    proofs = Proofs(resolver, ProviderPools())
    proofs.answered("mx.example.org", ADDRESS, verified=True)
    assert proofs.provider_at(ADDRESS) is None
    assert not resolver.asked


async def test_a_reverse_name_that_leads_back_is_a_proof(autojump_clock: MockClock) -> None:
    """Whatever the MX record calls the host: it is the address that is the provider's."""
    assert await found(ZONE) == "google"
    assert await found(ZONE, "mx.example.org") == "google"


async def test_a_reverse_name_that_leads_elsewhere_is_none(autojump_clock: MockClock) -> None:
    """Any owner of an address can give it a provider's name; only the provider can let that name lead to it."""
    stolen = {REVERSE: {"PTR": ["fra-in-f27.1e100.net."]}, "fra-in-f27.1e100.net": {"A": ["192.0.2.99"]}}
    assert await found(stolen) is None
    assert await found({REVERSE: {"PTR": ["fra-in-f27.1e100.net."]}}) is None


async def test_a_customers_reverse_name_is_none(autojump_clock: MockClock) -> None:
    """Names that a provider gives its customers' machines prove nothing, though they lead back."""
    rented = "ec2-192-0-2-27.compute.amazonaws.com"
    zone = {REVERSE: {"PTR": [f"{rented}."]}, rented: {"A": [ADDRESS]}}
    assert await found(zone, "inbound-smtp.eu-west-1.amazonaws.com") is None


async def test_a_proof_ends_when_no_server_answers(autojump_clock: MockClock) -> None:
    """An address where no server listens any more belongs to no provider."""
    proofs = Proofs(ZoneResolver({}), ProviderPools())
    proofs.answered(GOOGLE, ADDRESS, verified=True)
    proofs.silent(ADDRESS)
    assert proofs.provider_at(ADDRESS) is None


async def test_an_address_is_looked_up_once(autojump_clock: MockClock) -> None:
    """A hundred connections ask once; an hour later it is asked again, and after trouble of the DNS a minute later."""
    for zone, pause in (({}, ASKED_EVERY), ({REVERSE: {"PTR": Trouble.SERVFAIL}}, TROUBLED_EVERY)):
        resolver = ZoneResolver(zone)
        proofs = Proofs(resolver, ProviderPools())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(proofs.run)
            for _ in range(100):
                proofs.answered(GOOGLE, ADDRESS, verified=False)
            await wait_all_tasks_blocked()
            assert resolver.asked[REVERSE, "PTR"] == 1
            await trio.sleep(pause - 1)
            proofs.answered(GOOGLE, ADDRESS, verified=False)
            await trio.sleep(1)
            assert resolver.asked[REVERSE, "PTR"] == 1
            proofs.answered(GOOGLE, ADDRESS, verified=False)
            await wait_all_tasks_blocked()
            assert resolver.asked[REVERSE, "PTR"] == 2
            nursery.cancel_scope.cancel()


async def test_what_is_remembered_is_bounded(autojump_clock: MockClock) -> None:
    """A server for each address of the world would not fill the memory, and the queue of look-ups has an end."""
    proofs = Proofs(ZoneResolver({}), ProviderPools())
    for number in range(ADDRESSES_KEPT + 1_000):
        proofs.answered(GOOGLE, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", verified=False)
    assert len(proofs._known) <= ADDRESSES_KEPT
