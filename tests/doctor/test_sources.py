"""Checks of source addresses, with a fake DNS and fake mail servers."""

from ipaddress import ip_address
from pathlib import Path

import trio.testing

from appliance.config.load import parse
from appliance.dns.records import senders
from appliance.doctor import FindingLevel
from appliance.doctor.sources import check_source, judge_streams
from appliance.environment import Environment
from appliance.model.sources import SourceTable, configured_sources, node_name
from tests.fakes.dns import ZoneResolver

SETTINGS = """
[server]
hostname = "mail.example.com"
[delivery]
allow_networks = ["127.0.0.0/8"]
[delivery.sources.news]
ipv4 = "127.0.0.3"
ipv6 = "2001:db8::77"
hostname = "news.example.com"
[delivery.sources.plain]
ipv4 = "192.0.2.9"
[delivery.sources.other]
ipv4 = "192.0.2.10"
node = "elsewhere"
[delivery.streams.digest]
sources = ["news"]
[delivery.streams.alerts]
sources = ["plain", "other"]
"""
ZONE = {
    "news.example.com": {"A": ["8.8.4.4"]},
    "4.4.8.8.in-addr.arpa": {"PTR": ["news.example.com."]},
    "4.4.8.8.bl.test": {"A": ["127.0.0.2"]},
    "gmail.com": {"MX": ["10 mx.gmail.com."]},
    "mx.gmail.com": {"A": ["127.0.0.1"], "AAAA": ["::1"]},
}
CONFIG = parse(SETTINGS, Path("/srv/config.toml"))
TABLE = configured_sources(CONFIG)


async def test_a_source_is_checked_on_this_machine_in_dns_and_from_its_address() -> None:
    left_from = []

    async def dial_from(address: str, port: int, source: str) -> trio.abc.Stream:
        left_from.append((address, source))
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(b"220 mx.gmail.com\r\n")
        return ours

    env = Environment(dial_from=dial_from)
    findings = await check_source(ZoneResolver(ZONE), CONFIG, env, TABLE.by_name["news"], blocklists=["bl.test"])
    levels = {(found.check, found.subject): (found.level, found.text) for found in findings}
    assert levels["source", "news"] == (FindingLevel.FAULT, "2001:db8::77 is not on this machine")
    assert levels["hostname", "news.example.com of source news"] == (FindingLevel.OK, "resolves to 8.8.4.4")
    assert levels["ptr", "8.8.4.4"] == (FindingLevel.OK, "resolves to news.example.com and back")  # behind NAT
    assert levels["blocklist", "8.8.4.4 at bl.test"] == (FindingLevel.FAULT, "listed (127.0.0.2)")
    assert levels["port", "25 from 127.0.0.3 (news)"] == (FindingLevel.OK, "mx.gmail.com answers")
    assert left_from == [("127.0.0.1", "127.0.0.3")]


def test_a_stream_without_a_usable_source_is_a_fault() -> None:
    own = {"acme": {"digest": ("plain",)}}
    findings = judge_streams(TABLE, own, node_name(CONFIG))
    assert [found.subject for found in findings] == ["stream alerts", "stream digest of acme"]
    assert findings[0].text == "none of its sources can be used here (plain, other): its mail stays queued"
    assert judge_streams(SourceTable(), {}, "") == []


def test_spf_lists_the_sources_of_an_account() -> None:
    assert senders(CONFIG, ()).spf == "a:mail.example.com"
    assert senders(CONFIG, (), sources=TABLE.of_account({})).hosts == (
        *("192.0.2.10", "192.0.2.9", "mail.example.com", "news.example.com"),
    )
    own = {"alerts": ("news",)}
    assert senders(CONFIG, (), sources=TABLE.of_account(own)).spf == "a:mail.example.com a:news.example.com"
    of_address = [TABLE.by_name["plain"]]
    assert senders(CONFIG, (), sources=of_address).spf == "ip4:192.0.2.9 a:mail.example.com"


def test_a_source_of_another_node_is_not_checked_here() -> None:
    assert ip_address("192.0.2.10") not in [one for source in TABLE.of_node("here") for one in source.addresses]
