"""Which addresses may be dialled, and which never, in whatever form they come."""

import errno
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.load import parse
from appliance.net.address_policy import Address, is_allowed, refusal
from appliance.net.dial import Shortage
from appliance.net.local_addresses import LocalAddresses, node_addresses, source_address

PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1 168.63.129.15
169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.1 192.0.3.1 192.88.98.1 192.88.100.1
192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.1 198.51.101.1 203.0.112.1 203.0.114.1 223.255.255.255
2000::1 2001:200::1 2001:470::1 2001:4860:4860::8888 2003::1 2606:4700::1111 2a00:1450:4010:c0e::1a 3ffe::1
"""

REFUSED = {
    "unspecified": "0.0.0.0 ::",
    "this network": "0.0.0.1 0.255.255.255",
    "private": "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255",
    "unique-local": "fc00:: fd00:ec2::254 fdff::1",
    "shared": "100.64.0.0 100.100.100.200 100.127.255.255",
    "loopback": "127.0.0.0 127.0.0.1 127.0.0.53 127.255.255.255 ::1",
    "cloud": "168.63.129.16",
    "link-local": "169.254.0.0 169.254.169.254 169.254.255.255 fe80:: fe80::1 febf:ffff::1 fe80::1%eth0",
    "protocol": "192.0.0.0 192.0.0.9 192.0.0.192 192.0.0.255 2001:1::1 2001:4:112::1 2001:20::1 2001:1ff::1",
    "documentation": "192.0.2.0 192.0.2.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255 2001:db8:: 3fff::1",
    "6to4": "192.88.99.0 192.88.99.1 192.88.99.255 2002:: 2002:808:808::1 2002:7f00:1:: 2002:c0a8:1::1",
    "benchmarking": "198.18.0.0 198.19.255.255 2001:2::1",
    "multicast": "224.0.0.0 224.0.0.1 239.255.255.255 ff00:: ff02::1 ff0e::1",
    "reserved": "240.0.0.0 255.255.255.254 200::1 400::1 4000::1 5f00::1 a000::1 e000::1 fe00::1 1::1 64:ff9b:2::1",
    "broadcast": "255.255.255.255",
    "IPv4-mapped": "::ffff:0:0 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:8.8.8.8 ::ffff:7f00:1 ::ffff:7f00:1%lo",
    "IPv4-compatible": "::2 ::127.0.0.1 ::8.8.8.8 ::ffff:ffff",
    "IPv4-translated": "::ffff:0:127.0.0.1 ::ffff:0:808:808",
    "NAT64": "64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b::10.0.0.1 64:ff9b:1::1 64:ff9b:1:ffff::1 64:ff9b:1::7f00:1",
    "discard": "100::1",
    "Teredo": "2001:: 2001:0:808:808::1 2001:0:7f00:1::",
    "site-local": "fec0:: fec0::1 feff::1",
}


@pytest.mark.parametrize("text", PUBLIC.split())
def test_public_addresses_may_be_dialled(text: str) -> None:
    assert refusal(ip_address(text)) is None


@pytest.mark.parametrize(("word", "text"), [(word, text) for word, texts in REFUSED.items() for text in texts.split()])
def test_refused_addresses(word: str, text: str) -> None:
    """The first, the last and the famous addresses of each special network are refused by its name."""
    reason = refusal(ip_address(text))
    assert reason is not None
    assert word in reason
    assert reason.startswith(text.partition("%")[0].split(":")[0])


@given(st.integers(0, 2**32 - 1))
def test_no_form_smuggles_an_ipv4_address(bits: int) -> None:
    for form in (bits, 0xFFFF << 32 | bits, 0xFFFF << 48 | bits, 0x64FF9B << 96 | bits, 0x2002 << 112 | bits << 80):
        assert refusal(IPv6Address(form)) is not None
    assert refusal(IPv6Address(0x20010000 << 96 | ~bits & 0xFFFFFFFF)) is not None


@given(st.ip_addresses())
def test_python_knows_no_more(address: IPv4Address | IPv6Address) -> None:
    """Whatever Python's own tables call not global is refused here, too."""
    assert address.is_global or refusal(address) is not None


# ---- the allow-list


def networks(text: str) -> list[object]:
    return [ip_network(part) for part in text.split()]


@pytest.mark.parametrize(
    ("text", "allowed", "free"),
    [
        ("127.0.0.1", "127.0.0.0/8", True),
        ("127.0.0.1", "10.0.0.0/8 127.0.0.1/32", True),
        ("127.0.0.2", "127.0.0.1/32", False),
        ("127.0.0.1", "::1/128", False),
        ("127.0.0.1", "::/0", False),
        ("::1", "127.0.0.0/8", False),
        ("::1", "::1/128", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("192.168.1.1", "0.0.0.0/0", True),
        # An IPv4 network does not admit the forms that carry it, and a form admits only what it may carry.
        ("::ffff:127.0.0.1", "127.0.0.0/8", False),
        ("::ffff:127.0.0.1", "::ffff:0:0/96", False),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1/128", False),
        ("::ffff:127.0.0.1", "::ffff:0:0/96 127.0.0.0/8", True),
        ("64:ff9b::808:808", "64:ff9b::/96", True),
        ("64:ff9b::7f00:1", "64:ff9b::/96", False),
        ("64:ff9b::a00:1", "::/0", False),
        ("64:ff9b:1::808:808", "64:ff9b:1::/48", True),
        ("64:ff9b:1:808:8:800::", "64:ff9b:1::/48", False),
        ("2002:808:808::1", "2002::/16", True),
        ("2002:a00:1::1", "2002::/16", False),
        ("2002:a00:1::1", "2002::/16 10.0.0.0/8", True),
        ("2001:0:808:808::fefe:fefe", "2001::/32", True),  # client 1.1.1.1
        ("2001:0:808:808::80ff:fffe", "2001::/32", False),  # client 127.0.0.1
        ("2001:0:7f00:1::fefe:fefe", "2001::/32", False),  # server 127.0.0.1
        ("::8.8.8.8", "::/96", True),
        ("::127.0.0.1", "::/96", False),
        ("::", "::/96", True),
        ("::1", "::/96", True),
    ],
)
def test_the_allow_list(text: str, allowed: str, free: bool) -> None:
    """A list admits addresses in the form it names, and never by a form what it carries."""
    assert (refusal(ip_address(text), networks(allowed)) is None) is free  # type: ignore[arg-type]


def test_the_allow_list_by_itself() -> None:
    assert is_allowed(ip_address("fe80::1%eth0"), [ip_network("fe80::/10")])
    assert not is_allowed(ip_address("::ffff:10.0.0.1"), [ip_network("10.0.0.0/8")])


# ---- the machine's own addresses

OWN = frozenset({ip_address("192.0.1.5"), ip_address("2600::5")})


@pytest.mark.parametrize("text", ["192.0.1.5", "2600::5"])
def test_own_addresses_are_refused(text: str) -> None:
    assert refusal(ip_address(text), (), OWN) == f"{text} is an address of this machine"
    assert refusal(ip_address(text), [ip_network(text)], OWN) is None


def test_own_addresses_inside_other_forms() -> None:
    reason = refusal(ip_address("64:ff9b::c000:105"), [ip_network("64:ff9b::/96")], OWN)
    assert reason == "64:ff9b::c000:105 carries an IPv4 address: 192.0.1.5 is an address of this machine"


def test_the_system_knows_its_own_addresses() -> None:
    behind_nat = ip_address("1.2.3.4")
    own = LocalAddresses(frozenset({behind_nat}))
    assert ip_address("127.0.0.1") in own
    assert ip_address("1.1.1.1") not in own
    assert ip_address("2606:4700::1111") not in own
    assert behind_nat in own
    assert behind_nat not in LocalAddresses()
    assert "127.0.0.1" not in own


def test_addresses_of_other_nodes_are_own_ones() -> None:
    told: set[Address] = set()
    own, there = LocalAddresses(others=lambda: told), ip_address("192.0.1.6")
    assert refusal(there, (), own) is None
    told.add(there)
    assert refusal(there, (), own) == "192.0.1.6 is an address of this machine"
    assert refusal(there, [ip_network("192.0.1.0/24")], own) is None


def test_what_other_nodes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_from = {4: ip_address("9.9.9.9"), 6: None}
    monkeypatch.setattr("appliance.net.local_addresses.source_address", lambda target: leaves_from[target.version])
    text = """
    [http]
    bind = ["127.0.0.1:8080", "[2600::5]:443"]
    [smtp]
    bind = ["0.0.0.0:587", "192.0.1.5:587"]
    bind_tls = []
    [delivery]
    own_addresses = ["1.2.3.4"]
    """
    assert node_addresses(parse(text, Path("config.toml"))) == ["1.2.3.4", "192.0.1.5", "2600::5", "9.9.9.9"]


def test_the_routing_table_tells_where_mail_leaves_from() -> None:
    assert source_address(ip_address("127.0.0.9")) == ip_address("127.0.0.1")
    assert source_address(ip_address("255.255.255.255")) is None


def test_without_a_descriptor_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.net.local_addresses._udp_socket", _no_socket)
    with pytest.raises(Shortage, match="Too many open files"):
        refusal(ip_address("1.1.1.1"), (), LocalAddresses())
    assert refusal(ip_address("1.1.1.1"), (), LocalAddresses(frozenset({ip_address("1.1.1.1")}))) is not None


def _no_socket(_: Address) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_system_that_binds_to_anything_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.net.local_addresses._binds", lambda address: True)
    assert ip_address("1.1.1.1") not in LocalAddresses()
