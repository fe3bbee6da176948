"""What the operator's settings make of relays, pools and the rest of delivery."""

from math import inf
from pathlib import Path

import pytest

from appliance.cli import failures
from appliance.config.load import parse
from appliance.config.settings import Config, ConfigError, RelayTls
from appliance.deliver import build
from appliance.deliver.providers import PROVIDERS, PoolLimits, pools
from appliance.deliver.route import NoRoute, Relay, Relays, Router, relay_for
from appliance.deliver.route import configured_relays as relays
from appliance.environment import Environment
from appliance.model.warmup import hourly_limit
from appliance.store import open_store
from appliance.store.new_mail import NewMail
from tests.fakes.dns import ZoneResolver

FILE = Path("/srv/config.toml")
MAIN = 'mode = "relay"\nrelay_host = "smart.example"\n'


def config(text: str) -> Config:
    return parse(f"[delivery]\n{text}", FILE)


# ---- relays


def test_without_a_relay_mail_goes_to_the_mx() -> None:
    assert relays(config("").delivery) == Relays()
    unused = relays(config('relay_host = "smart.example"').delivery)
    assert unused == Relays(ramp=Relay("smart.example"))  # only for mail that a relay may have already


def test_in_mode_relay_everything_goes_there() -> None:
    login = 'relay_port = 465\nrelay_username = "u"\nrelay_password = "p"\nrelay_tls = "implicit"'
    made = relays(config(MAIN + login).delivery)
    assert made.default == Relay("smart.example", 465, "u", "p", RelayTls.IMPLICIT)
    assert relay_for("anything.example", made) == made.default
    assert made.only


def test_a_domain_may_have_its_own_relay_in_direct_mode() -> None:
    made = relays(config('[delivery.relays."*.example.com"]\nhost = "10.0.0.5"\nport = 25\ntls = "off"').delivery)
    assert relay_for("a.example.com", made) == Relay("10.0.0.5", 25, tls=RelayTls.OFF)
    assert relay_for("example.com", made) is None
    assert not made.only


def test_a_domain_may_have_its_own_relay_in_relay_mode() -> None:
    made = relays(config(f'{MAIN}[delivery.relays."example.com"]\nhost = "other.example"').delivery)
    assert relay_for("example.com", made) == Relay("other.example")
    assert relay_for("example.net", made) == Relay("smart.example")


async def test_mode_relay_never_becomes_direct() -> None:
    made = relays(config('mode = "relay"\n[delivery.relays."example.com"]\nhost = "other.example"').delivery)
    router = Router(ZoneResolver({"example.net": {"MX": ["10 mx.example.net."]}}), lambda: 0.5, relays=made)
    with pytest.raises(NoRoute) as refused:
        await router.route("example.net")
    assert not refused.value.permanent
    assert "no relay is configured for example.net" in refused.value.text


# ---- pools


def test_without_settings_the_pools_are_as_built_in() -> None:
    made = pools(config(""))
    for provider in PROVIDERS:
        for suffix in provider.suffixes:
            assert (made.of(f"mx.{suffix}").name, made.of(f"mx.{suffix}").limits) == (provider.name, provider.limits)
    assert made.of("mx.example.net").limits == PoolLimits()


def test_a_built_in_pool_is_changed_key_by_key() -> None:
    before = pools(config("")).of("smtp-in.orange.fr").limits
    assert before.per_minute is not None
    made = pools(config("[delivery.pools.orange]\nper_minute = 0")).of("smtp-in.orange.fr").limits
    assert made == PoolLimits(before.concurrency, before.messages_per_connection, None)
    text = "[delivery.pools.orange]\nconcurrency = 7\nmessages_per_connection = 3"
    assert pools(config(text)).of("smtp-in.orange.fr").limits == PoolLimits(7, 3, before.per_minute)


def test_the_default_is_for_all_other_organisations() -> None:
    made = pools(
        config(
            "[delivery.pools.default]\nconcurrency = 3\nper_minute = 60\n"
            '[delivery.pools.partner]\nsuffixes = ["partner.example"]\nconcurrency = 9'
        )
    )
    assert made.of("mx.example.net").limits == PoolLimits(3, 100, 60)
    assert made.of("aspmx.l.google.com").limits == pools(config("")).of("aspmx.l.google.com").limits
    partner = made.of("mx1.partner.example")
    assert (partner.name, partner.limits) == ("partner", PoolLimits(9, 100, 60))


def test_a_new_pool_may_take_a_suffix_from_a_built_in_one() -> None:
    made = pools(config('[delivery.pools.aaa]\nsuffixes = ["corp.google.com", "psmtp.com"]'))
    hosts = ("mx.corp.google.com", "mx.psmtp.com", "smtp.google.com")
    assert [made.of(host).name for host in hosts] == ["aaa", "aaa", "google"]


def test_a_new_pool_may_take_all_hosts_below_a_name() -> None:
    made = pools(config('[delivery.pools.aaa]\nsuffixes = ["google.com"]'))
    hosts = ("aspmx.l.google.com", "www.google.com", "mx.psmtp.com")
    assert [made.of(host).name for host in hosts] == ["aaa", "aaa", "google"]


def test_only_servers_of_built_in_pools_must_answer() -> None:
    text = '[delivery.pools.google]\nconcurrency = 3\n[delivery.pools.partner]\nsuffixes = ["partner.example"]'
    made = pools(config(text))
    assert made.of("smtp.google.com").is_provider
    assert not made.of("mx.partner.example").is_provider
    assert not pools(config('[delivery.pools.google]\nsuffixes = ["google.com"]')).of("smtp.google.com").is_provider


def test_suffixes_of_a_built_in_pool_are_replaced() -> None:
    made = pools(config('[delivery.pools.google]\nsuffixes = ["google.com"]'))
    assert made.of("mx.psmtp.com").name == "psmtp.com"


def test_an_unknown_pool_is_an_error() -> None:
    with pytest.raises(ConfigError) as refused:
        pools(config("[delivery.pools.gogle]\nconcurrency = 1"))
    line = str(refused.value)
    assert line.startswith("/srv/config.toml: delivery.pools.gogle.suffixes: missing: gogle is not a built-in pool (")
    assert "google" in line


def test_a_relay_that_is_an_address_is_its_own_pool() -> None:
    assert [pools(config("")).of(host).name for host in ("192.0.2.1", "::1")] == ["192.0.2.1", "::1"]


# ---- put together


async def test_delivery_is_built_from_the_settings(tmp_path: Path) -> None:
    made = config(f'{MAIN}own_addresses = ["203.0.113.7"]\nsessions = 7\n[delivery.pools.default]\nconcurrency = 1')
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        scheduler = build.build(made, env, store, bytes(32), NewMail(), stop_by=lambda: inf)
    assert scheduler.sessions == 7
    assert scheduler.deliverer.limiters.servers.pools.others == PoolLimits(1)
    assert scheduler.preparing.routes.router.relays.default == Relay("smart.example")
    assert made.delivery.own_addresses[0] in scheduler.preparing.routes.router.own
    assert not scheduler.deliverer.warmup.settings.enabled  # unless it is on


async def test_warm_up_is_built_from_the_settings(tmp_path: Path) -> None:
    made = config("[warmup]\nenabled = true\nfirst_hour = 5\ngrowth = 2\ndays = 3")
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        scheduler = build.build(made, env, store, bytes(32), NewMail(), stop_by=lambda: inf)
    assert scheduler.deliverer.warmup.settings.enabled
    assert [hourly_limit(scheduler.deliverer.warmup.settings, day) for day in range(4)] == [5, 10, 20, None]


async def test_a_setting_found_wrong_while_starting_is_one_line(tmp_path: Path) -> None:
    made = config("[delivery.pools.gogle]\nconcurrency = 1")
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        with pytest.raises(ConfigError) as refused:
            build.build(made, env, store, bytes(32), NewMail(), stop_by=lambda: inf)
    assert failures.explain(ExceptionGroup("a nursery", [refused.value]), made) == str(refused.value)
