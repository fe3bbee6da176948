"""Which pool an MX host belongs to."""

import pytest
import trio
from trio.testing import MockClock

from appliance.deliver.pool_limiters import ADDRESSES_KEPT, ANSWER_COUNTS_FOR, ProviderServers
from appliance.deliver.providers import (
    PROVIDERS,
    STARRED_LABELS,
    Pool,
    PoolLimits,
    Provider,
    ProviderPools,
    by_suffix,
    organisation,
)
from tests.cpu_time import cpu_seconds

POOLS = ProviderPools()


@pytest.mark.parametrize(
    ("host", "pool"),
    [
        ("gmail-smtp-in.l.google.com", "google"),
        ("alt1.aspmx.l.google.com", "google"),
        ("smtp.google.com", "google"),
        ("ASPMX2.GoogleMail.com.", "google"),
        ("hotmail-com.olc.protection.outlook.com", "outlook"),
        ("contoso-com.mail.protection.outlook.com", "microsoft365"),
        ("contoso-com.o-v1.mx.microsoft", "microsoft365"),
        ("mta5.am0.yahoodns.net", "yahoo"),
        ("mx-aol.mail.gm0.yahoodns.net", "yahoo"),
        ("mx1.mail.yahoo.co.jp", "yahoo-japan"),
        ("mx01.mail.icloud.com", "apple"),
        ("mx.zoho.eu", "zoho"),
        ("mail.protonmail.ch", "proton"),
        ("in1-smtp.messagingengine.com", "fastmail"),
        ("eu-smtp-inbound-1.mimecast.com", "mimecast"),
        ("mx0a-00082601.pphosted.com", "proofpoint"),
        ("mx00.emig.gmx.net", "gmx"),
        ("mx-ha02.web.de", "gmx"),
        ("smtp-in.orange.fr", "orange"),
        ("mx1.mxge.comcast.net", "comcast"),
        ("inbound-smtp.eu-west-1.amazonaws.com", "amazon"),
        ("mx1.mail.ovh.net", "ovh"),
        ("mx00.ionos.de", "ionos"),
        # Names that providers' customers have are none of the provider's mail hosts.
        ("www.google.com", "google.com"),
        ("ec2-198-51-100-1.eu-west-1.compute.amazonaws.com", "amazonaws.com"),
        ("inbound-smtp.amazonaws.com", "amazonaws.com"),
        ("vps-1234abcd.vps.ovh.net", "ovh.net"),
        ("c-198-51-100-1.hsd1.il.comcast.net", "comcast.net"),
        ("me.hd.free.fr", "free.fr"),
        ("lfbn-1-2-3.abo.wanadoo.fr", "wanadoo.fr"),
        ("ip-198-51-100-1.ip.secureserver.net", "secureserver.net"),
        ("cpe-198-51-100-1.res.rr.com", "rr.com"),
        # Others have a pool of their organisation.
        ("mx1.example.com", "example.com"),
        ("mx2.deep.inside.example.com", "example.com"),
        ("example.com", "example.com"),
        ("mail.example.co.uk", "example.co.uk"),
        ("mail.example.com.br", "example.com.br"),
        ("mail.example.de", "example.de"),
        ("mail.co.uk", "mail.co.uk"),
        ("com.de", "com.de"),
        ("localhost", "localhost"),
        # A name that only looks like a provider's is none.
        ("mx.notgoogle.com", "notgoogle.com"),
        ("google.com.evil.example", "evil.example"),
        ("mx.google.com.example.org", "example.org"),
    ],
)
def test_pool_of_a_host(host: str, pool: str) -> None:
    assert POOLS.of(host).name == pool


def test_limits_come_with_the_pool() -> None:
    assert POOLS.of("smtp-in.orange.fr").limits.concurrency == 2
    assert ProviderPools(others=PoolLimits(3)).of("mx.example.com") == Pool("example.com", PoolLimits(3))


def test_the_operators_table_replaces() -> None:
    ours = Provider("mine", ("smtp.google.com", "mx.example.com"), PoolLimits(1, 1, 1))
    pools = ProviderPools(by_suffix((*PROVIDERS, ours)))
    assert pools.of("smtp.google.com").name == "mine"
    assert pools.of("a.mx.example.com").limits.per_minute == 1
    assert pools.of("other.example.com").name == "example.com"


def test_a_long_name_takes_no_longer() -> None:
    """The owner of a zone chooses the labels of MX hosts; the event loop waits meanwhile."""
    name = ".".join(["a"] * 122) + ".evil.test"
    assert POOLS.of(name).name == "evil.test"
    assert POOLS.of(f"{'a.' * 100}inbound-smtp.eu-west-1.amazonaws.com").name == "amazon"
    own = ProviderPools(by_suffix((Provider("mine", (name.partition(".")[2],)),)))
    assert own.of(name).name == "mine"  # an operator's own suffix may have any length
    assert cpu_seconds(lambda: POOLS.of(name)) < 0.001


def test_the_table_is_sane() -> None:
    suffixes = [suffix for provider in PROVIDERS for suffix in provider.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert len({provider.name for provider in PROVIDERS}) == len(PROVIDERS)
    assert all(suffix == suffix.lower().strip(".") and "." in suffix for suffix in suffixes)
    assert all(suffix.count(".") < STARRED_LABELS for suffix in by_suffix(PROVIDERS) if "*" in suffix)
    for provider in PROVIDERS:
        limits = provider.limits
        assert limits.concurrency >= 1
        assert limits.messages_per_connection >= 1
        assert limits.per_minute is None or limits.per_minute >= 1


@pytest.mark.parametrize(("host", "name"), [("A.B.Example.COM.", "example.com"), ("x.go.jp", "x.go.jp"), ("a", "a")])
def test_organisation(host: str, name: str) -> None:
    """The registered domain is the last two labels, or three under a country's second level."""
    assert organisation(host) == name


async def test_a_server_is_a_providers_once_it_has_answered(autojump_clock: MockClock) -> None:
    servers = ProviderServers(POOLS)
    servers.answered("mx.example.org", "192.0.2.1")
    servers.answered("aspmx.l.google.com", "192.0.2.2")
    assert [servers.provider_at(f"192.0.2.{number}") for number in (1, 2, 3)] == [None, "google", None]
    await trio.sleep(ANSWER_COUNTS_FOR - 1)
    assert servers.provider_at("192.0.2.2") == "google"
    await trio.sleep(1)
    assert servers.provider_at("192.0.2.2") is None
    assert servers.provider_at("192.0.2.2", {"google"}) == "google"  # no mail can renew it while the pool is held
    servers.answered("aspmx.l.google.com", "192.0.2.2")
    servers.silent("192.0.2.2")
    assert servers.provider_at("192.0.2.2") is None


async def test_the_memory_of_servers_is_bounded(autojump_clock: MockClock) -> None:
    """A server at every address there is would not fill the memory."""
    servers = ProviderServers(POOLS)
    for number in range(ADDRESSES_KEPT + 1_000):
        servers.answered("aspmx.l.google.com", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(servers._providers) == ADDRESSES_KEPT
