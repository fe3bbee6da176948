"""Which URLs may be saved: plain ones to public hosts, and no others."""

from collections.abc import Container, Iterable
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.net.address_policy import Network
from appliance.webhook.connect import Target, UrlRefused, read_url
from tests.webhook.hostile_urls import OWN_NAMES, SPELLINGS

PORTS = frozenset({443, 8443})


def fault_of(url: str, own_names: Container[str] = OWN_NAMES, allowed: Iterable[Network] = ()) -> str | None:
    try:
        read_url(url, PORTS, own_names, allowed)
    except UrlRefused as refused:
        return str(refused)
    return None


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("https://hooks.example.com", ("hooks.example.com", 443, "/"), "hooks.example.com"),
        ("https://hooks.example.com:443/", ("hooks.example.com", 443, "/"), "hooks.example.com"),
        ("HTTPS://Hooks.Example.COM/In", ("hooks.example.com", 443, "/In"), "hooks.example.com"),
        ("https://hooks.example.com:8443/a/b?c=d&e=%20", ("hooks.example.com", 8443, "/a/b?c=d&e=%20"), None),
        ("https://hooks.example.com?x=//y?z", ("hooks.example.com", 443, "/?x=//y?z"), "hooks.example.com"),
        ("https://hooks.example.com/a@b:c/../d", ("hooks.example.com", 443, "/a@b:c/../d"), "hooks.example.com"),
        ("https://xn--bcher-kva.example/", ("xn--bcher-kva.example", 443, "/"), "xn--bcher-kva.example"),
        ("https://1and1.example/", ("1and1.example", 443, "/"), "1and1.example"),
        ("https://127.0.0.1.example.com/", ("127.0.0.1.example.com", 443, "/"), "127.0.0.1.example.com"),
        ("https://9.9.9.9/x", ("9.9.9.9", 443, "/x"), "9.9.9.9"),
        ("https://[2620:fe:0::FE]:8443/x", ("2620:fe::fe", 8443, "/x"), "[2620:fe::fe]:8443"),
    ],
)
def test_good_urls(url: str, target: tuple[str, int, str], authority: str | None) -> None:
    read = read_url(url, PORTS, OWN_NAMES)
    assert read[:3] == target
    assert read.authority == (authority or "hooks.example.com:8443")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_hostile_urls(spelling: str) -> None:
    fault = fault_of(spelling.replace("{port}", "8443"))
    assert fault is not None
    assert fault.isprintable()
    assert len(fault) < 200


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://hooks.example.com/", "must begin with https://"),
        ("https://localhost/", "localhost is this machine"),
        ("https://192.168.1.7/", "192.168.1.7 is a private address (192.168.0.0/16)"),
        ("https://[::ffff:169.254.169.254]/", "IPv4-mapped"),
        ("https://2130706433/", "not written as 192.0.2.1 is"),
        ("https://①②⑦.0.0.1/", "must be ASCII"),
        ("https://hooks.example.com:22/", "port 22 is not allowed"),
        ("https://hooks.example.com:99999/", "not a number from 1 to 65535"),
        ("https://user:pw@hooks.example.com/", "user name"),
        ("https://hooks.example.com/#top", "fragment"),
        ("https://[fe80::1%25eth0]/", "network interface"),
        ("https://hooks.example.com./", "must not end in a dot"),
        ("https://intranet/", "without a domain"),
        ("https://mail.example.net/", "this service itself"),
        ("https://a.b.own.example/", "this service itself"),
        ("https://hooks.example.com/a b", "a space or a control character"),
        ("https://hooks.example.com/a|b", "percent-encoded"),
        ("https:///x", "no host"),
    ],
)
def test_the_reason_says_what_is_wrong(url: str, words: str) -> None:
    assert words in str(fault_of(url))


def test_below_a_name_of_ours_may_be_others() -> None:
    assert fault_of("https://hooks.mail.example.net/") is None
    assert fault_of("https://notown.example/") is None
    assert fault_of("https://9.9.9.9/", {"9.9.9.9"}) == "9.9.9.9 is this service itself"


def test_an_allowed_network_admits_its_addresses_only() -> None:
    allowed = (ip_network("127.0.0.0/8"),)
    assert fault_of("https://127.0.0.1/", (), allowed) is None
    for url in ("https://10.0.0.1/", "https://[::ffff:127.0.0.1]/", "https://127.1/", "https://localhost/"):
        assert fault_of(url, (), allowed) is not None


@given(st.text(max_size=60) | st.from_regex(r"\Ahttps?:[/\\]{0,3}[a-z0-9.@:\[\]%#?/-]{0,40}\Z"))
def test_any_text_is_judged(text: str) -> None:
    try:
        target: Target | None = read_url(text, PORTS, OWN_NAMES)
    except UrlRefused:
        target = None
    if target is not None:
        assert text.lower().startswith(f"https://{target.authority}") or target.address or ":443" in text
        assert target.path.isascii()
        assert target.path.isprintable()
        assert not set(target.path) & set(' "#<>\\^`{|}')


LOCAL_URLS = {
    "http://localhost:3000/hooks": ("localhost", 3000, "/hooks"),
    "http://127.0.0.1:3000/?a=b": ("127.0.0.1", 3000, "/?a=b"),
    "HTTP://127.8.9.10": ("127.8.9.10", 80, "/"),
    "http://[::1]:22/": ("::1", 22, "/"),
}


@pytest.mark.parametrize("url", LOCAL_URLS)
def test_plain_http_to_this_machine_has_to_be_asked_for(url: str) -> None:
    target = read_url(url, PORTS, OWN_NAMES, plain_loopback=True)
    assert (target[:3], target.secure) == (LOCAL_URLS[url], False)
    with pytest.raises(UrlRefused, match="must begin with https"):
        read_url(url, PORTS, OWN_NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "10.0.0.1",
        "0.0.0.0",
        "[::]",
        "localhost.example.com",
        "a.localhost",
        "127.0.0.1.nip.io",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
    ],
)
def test_plain_http_to_any_other_is_refused(host: str) -> None:
    with pytest.raises(UrlRefused, match="plain http may only lead to this machine"):
        read_url(f"http://{host}:3000/", PORTS, OWN_NAMES, plain_loopback=True)
    with pytest.raises(UrlRefused):
        read_url("https://127.0.0.1/", PORTS, OWN_NAMES, plain_loopback=True)


@pytest.mark.parametrize("url", ["https://example.com/hook", "https://localhost:8443/hook", "https://example.com:3000"])
def test_a_server_that_posts_to_this_machine_only_says_so(url: str) -> None:
    """And not that a port is wrong, as if another one would do."""
    with pytest.raises(UrlRefused, match=r"must begin with http://localhost: this server posts to no other machine"):
        read_url(url, (), OWN_NAMES, plain_loopback=True)
