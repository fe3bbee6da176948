"""Settings are read as the documentation says, and an error names file, key and reason."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from ipaddress import ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import load as config
from appliance.config.load import load, parse
from appliance.config.settings import (
    SECTIONS,
    Config,
    ConfigError,
    DeliveryMode,
    PoolSettings,
    RelaySettings,
    RelayTls,
    named_tables,
    settings,
)
from appliance.config.values import Endpoint, Setting, Share, field_name

FILE = Path("/srv/config.toml")


def refusal(text: str, file: Path = FILE) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text, file)
    line = str(refused.value)
    assert line.isprintable()
    assert line.startswith(f"{file}: ")
    return line.removeprefix(f"{file}: ")


def setting(key: str, value: str) -> str:
    section, name = key.split(".")
    return f"[{section}]\n{name} = {value}\n"


def read(key: str, value: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(parse(setting(key, value), FILE), section), field_name(name))


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "etc" / "config.toml")
    (tmp_path / "etc").mkdir()
    return tmp_path


def write(file: Path, hostname: str) -> Path:
    file.write_text(setting("server.hostname", f'"{hostname}"'))
    return file


# What a file that leaves keys out gets


def test_an_empty_hostname_is_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: pytest.fail("asks DNS"))
    monkeypatch.setattr("socket.gethostname", lambda: "Mx7")
    assert parse("", FILE).server.hostname == "mx7"
    monkeypatch.setattr("socket.gethostname", lambda: "my_container")
    assert parse("", FILE).server.hostname == "localhost"


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("192.0.2.1:80", "http://192.0.2.1:80"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("0.0.0.0:8080", "http://mx.example.com:8080"),
        ("[::]:8080", "http://mx.example.com:8080"),
    ],
)
def test_an_empty_base_url_is_where_the_first_listener_is(bind: str, url: str) -> None:
    text = f'[server]\nhostname = "mx.example.com"\n[http]\nbind = ["{bind}", "127.0.0.1:1"]'
    assert parse(text, FILE).http.base_url == url


def test_an_empty_base_url_is_https_with_a_certificate(tmp_path: Path) -> None:
    (tmp_path / "tls.pem").touch()
    made = parse('[http]\ntls_cert = "tls.pem"\ntls_key = "tls.pem"', tmp_path / "config.toml")
    assert made.http.base_url == "https://127.0.0.1:8080"


def test_settings_cannot_be_changed() -> None:
    made = parse("", FILE)
    with pytest.raises(FrozenInstanceError):
        made.http.max_body = 1  # type: ignore[misc]  # that is the point
    assert made == parse("", FILE)


# How values are read


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("10ms", 0.01), ("5s", 5), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("1m500ms", 60.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert read("delivery.retry_delays", f'["{text}"]') == (seconds,)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"0"', 0),
        ("0", 0),
        ("123", 123),
        ('"123"', 123),
        ('"1B"', 1),
        ('"64KiB"', 65536),
        ('"16 MiB"', 16 * 2**20),
        ('"1GiB"', 2**30),
        ('"1GB"', 10**9),
        ('"2TiB"', 2**41),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert read("limits.min_free_disk", text) == count


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ('"25%"', Share(percent=25)),
        ('"100%"', Share(percent=100)),
        ('"10GiB"', Share(10 * 2**30)),
        ("5000", Share(5_000)),
        ('"0"', Share()),
        ("0", Share()),
    ],
)
def test_shares(text: str, share: Share) -> None:
    assert read("limits.stored_bytes_per_account", text) == share


def test_addresses() -> None:
    assert read("http.bind", '["127.0.0.1:0", "[::1]:8080", "localhost:1"]') == (
        ("127.0.0.1", 0),
        ("::1", 8080),
        ("127.0.0.1", 1),
    )
    assert read("dns.resolvers", '["127.0.0.1:5353", "192.0.2.1", "::1", "[::1]:5353"]') == (
        ("127.0.0.1", 5353),
        ("192.0.2.1", 53),
        ("::1", 53),
        ("::1", 5353),
    )
    networks = (ip_network("127.0.0.0/8"), ip_network("192.0.2.1/32"), ip_network("fd00::/8"))
    for key in ("http.trusted_proxies", "delivery.allow_networks", "webhooks.allow_networks"):
        assert read(key, '["127.0.0.0/8", "192.0.2.1", "fd00::/8"]') == networks


@pytest.mark.parametrize(
    ("key", "value", "read_as"),
    [
        ("relay_host", '"Smart.Example"', "smart.example"),
        ("relay_host", '"192.0.2.1"', "192.0.2.1"),
        ("relay_host", '"::1"', "::1"),
        ("relay_port", "465", 465),
        ("relay_tls", '"implicit"', RelayTls.IMPLICIT),
        ("relay_tls", '"off"', RelayTls.OFF),
        ("own_addresses", '["192.0.2.1", "2001:db8::1"]', (ip_address("192.0.2.1"), ip_address("2001:db8::1"))),
        ("sessions", "20", 20),
    ],
)
def test_delivery_settings(key: str, value: str, read_as: object) -> None:
    assert read(f"delivery.{key}", value) == read_as


def test_a_relays_login() -> None:
    made = parse('[delivery]\nrelay_username = "a b"\nrelay_password = "p\u00e4ss \\"word\\""', FILE)
    assert (made.delivery.relay_username, made.delivery.relay_password) == ("a b", 'päss "word"')
    assert "päss" not in repr(made)


def test_relays_by_domain() -> None:
    made = parse('[delivery.relays."*.Example.COM"]\nhost = "a.example"\n[delivery.relays.local]\nhost = "::1"', FILE)
    assert made.delivery.relays == {
        "*.example.com": RelaySettings(host="a.example"),
        "local": RelaySettings(host="::1"),
    }
    text = 'host = "a.example"\nport = 465\nusername = "u"\npassword = "p"\ntls = "implicit"'
    made = parse(f'[delivery.relays."example.com"]\n{text}', FILE)
    assert made.delivery.relays == {"example.com": RelaySettings("a.example", 465, "u", "p", RelayTls.IMPLICIT)}
    assert "'p'" not in repr(made)


def test_pools_by_name() -> None:
    text = 'suffixes = ["A.example"]\nconcurrency = 5\nmessages_per_connection = 20\nper_minute = 0'
    made = parse(f"[delivery.pools.mail-x]\n{text}\n[delivery.pools.default]\nconcurrency = 2", FILE).delivery.pools
    assert made == {"mail-x": PoolSettings(("a.example",), 5, 20, 0), "default": PoolSettings((), 2, None, None)}


def test_mode_relay_is_content_with_relays_by_domain() -> None:
    made = parse('[delivery]\nmode = "relay"\n[delivery.relays."example.com"]\nhost = "a.example"', FILE)
    assert made.delivery.mode is DeliveryMode.RELAY


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('mode = "relay"', 'delivery.relay_host: missing, though mode is "relay"'),
        ('relay_username = "u"', "delivery.relay_password: missing, though username is set"),
        ('relay_password = "p"', "delivery.relay_username: missing, though password is set"),
        (
            'relay_username = "u"\nrelay_password = "p"\nrelay_tls = "off"',
            'delivery.relay_tls: "off", though username is set: a password is sent only under TLS',
        ),
        ("relays = 1", "delivery.relays: must be a section, [delivery.relays]"),
        (
            '[delivery.relays]\n"example.com" = 1',
            'delivery.relays."example.com": must be a section, [delivery.relays."example.com"]',
        ),
        ('[delivery.relays."example.com"]', 'delivery.relays."example.com".host: missing'),
        (
            '[delivery.relays."example.com"]\nhst = "a"',
            'delivery.relays."example.com".hst: unknown key; did you mean "host"?',
        ),
        (
            '[delivery.relays."a..b"]\nhost = "a"',
            'delivery.relays."a..b": the name must be a domain such as "example.com", or "*.example.com" for all below'
            ' it, not "a..b"',
        ),
        (
            '[delivery.relays.local]\nhost = "a"\nusername = "u"',
            "delivery.relays.local.password: missing, though username is set",
        ),
        ('[delivery.relais."example.com"]', 'delivery.relais: unknown key; did you mean "relays"?'),
        ("[delivery.pools.google]\nconcurency = 1", 'delivery.pools.google.concurency: unknown key; did you mean "'),
        (
            "[delivery.pools.google]\nconcurrency = 0",
            "delivery.pools.google.concurrency: must be a whole number from 1",
        ),
        ("[delivery.pools.google]\nmessages_per_connection = 0", "delivery.pools.google.messages_per_connection: must"),
        ("[delivery.pools.google]\nper_minute = -1", "delivery.pools.google.per_minute: must be a whole number from 0"),
        ('[delivery.pools.google]\nsuffixes = "x"', "delivery.pools.google.suffixes: must be a list"),
        ('[delivery.pools."A B"]', 'delivery.pools."A B": the name must be a name of lower-case letters'),
        (
            '[delivery.pools.default]\nsuffixes = ["a.example"]',
            "delivery.pools.default.suffixes: default is every organisation that no other pool names",
        ),
        (
            '[delivery.pools.a]\nsuffixes = ["a.example"]\n[delivery.pools."b.c"]\nsuffixes = ["a.example"]',
            'delivery.pools."b.c".suffixes: a.example belongs to the pool a already',
        ),
    ],
)
def test_relays_and_pools_that_cannot_be(text: str, line: str) -> None:
    assert refusal(f"[delivery]\n{text}").startswith(line)


def test_endpoints_are_shown_as_they_are_written() -> None:
    assert [str(Endpoint("127.0.0.1", 1)), str(Endpoint("::1", 2))] == ["127.0.0.1:1", "[::1]:2"]


def test_names_and_urls_lose_their_case() -> None:
    assert read("server.own_domains", '["Mail.Example.COM", "a-1.example"]') == ("mail.example.com", "a-1.example")
    assert read("http.base_url", '"HTTPS://Mail.Example.com:8443/"') == "https://mail.example.com:8443"
    assert read("http.base_url", '"http://[::1]:8080"') == "http://[::1]:8080"


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    made = parse('[server]\ndata_dir = "state"\n[delivery]\nca_file = "ca.pem"', tmp_path / "config.toml")
    assert made.server.data_dir == tmp_path / "state"
    assert made.delivery.ca_file == tmp_path / "ca.pem"


# What is refused, and how that is said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[htp]", 'htp: unknown section; did you mean "http"?'),
        ("[zzz]", "zzz: unknown section"),
        ("[http]\nbnd = 1", 'http.bnd: unknown key; did you mean "bind"?'),
        ("[http]\nzzz = 1", "http.zzz: unknown key"),
        ("http = 1", "http: must be a section, [http]"),
        ('"a\\nb" = 1', "a\\nb: unknown section"),
        ("[http]\nbind =", "line 2: Invalid value"),
        ("[http]\n\nbind = x", "line 3, column 8: Invalid value"),
        ("[http]\n[http]", "line 2, column 6: Cannot declare ('http',) twice"),
        ("a = " + "[" * 10_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_not_one_of_ours(text: str, line: str) -> None:
    assert refusal(text) == line


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("server.hostname", '"a..b"', 'must be a host name such as "mail.example.com", not "a..b"'),
        ("server.hostname", '"192.0.2.1"', "must be a host name"),
        ("server.hostname", '"-a.example"', "must be a host name"),
        ("server.hostname", '"a_b.example"', "must be a host name"),
        ("server.hostname", f'"{"a" * 64}.example"', "must be a host name"),
        ("server.hostname", f'"{"a." * 127}example"', "must be a host name"),
        ("server.hostname", "7", "must be a host name"),
        ("server.own_domains", '[""]', "must be a host name"),
        ("server.own_domains", '"example.com"', 'must be a list, not "example.com"'),
        ("server.data_dir", '""', 'must be a directory, not ""'),
        ("server.data_dir", '"a\\u0000b"', "must be a directory"),
        ("server.shutdown_timeout", '"0s"', 'must be over zero and at most 365d, not "0s"'),
        ("server.shutdown_timeout", '"366d"', "must be over zero and at most 365d"),
        ("server.shutdown_timeout", "60", 'must be a duration such as "30s" or "1h30m", not 60'),
        ("server.shutdown_timeout", '"5 parsecs"', "must be a duration"),
        ("http.bind", "[]", "must not be empty"),
        ("http.bind", '["127.0.0.1:65536"]', "port 65536 is over 65535"),
        ("http.bind", '["127.0.0.1"]', "must be an IP address and a port"),
        ("http.bind", '["::1:80"]', "must be an IP address and a port"),
        ("http.bind", '["[127.0.0.1]:80"]', "must be an IP address and a port"),
        ("http.bind", '[":80"]', "must be an IP address and a port"),
        ("http.bind", '["127.0.0.1:٣"]', "must be an IP address and a port"),
        ("http.bind", "[8080]", "must be an IP address and a port"),
        ("http.base_url", '"mail.example.com"', "must be an http or https URL"),
        ("http.base_url", '"ftp://mail.example.com"', "must be an http or https URL"),
        ("http.base_url", '"https://"', "must be an http or https URL"),
        ("http.base_url", '"https://a:b@mail.example.com"', "must be an http or https URL"),
        ("http.base_url", '"https://mail.example.com/mail"', "must be an http or https URL without a path"),
        ("http.base_url", '"https://mail.example.com?"', "must be an http or https URL"),
        ("http.base_url", '"https://mail\\n.example.com"', "must be an http or https URL"),
        ("http.base_url", '"https://mail.example.com:70000"', "must be an http or https URL"),
        ("http.base_url", '"https://[::1"', "must be an http or https URL"),
        ("http.trusted_proxies", '["10.0.0.1/8"]', "10.0.0.1/8 has bits set beyond its prefix length"),
        ("http.trusted_proxies", '["proxy"]', "must be a network"),
        ("http.max_connections", "0", "must be a whole number from 1 to 1000000, not 0"),
        ("http.max_connections", "-1", "must be a whole number"),
        ("http.max_connections", "true", "must be a whole number"),
        ("http.max_connections", "1.5", "must be a whole number"),
        ("http.max_connections", '"1000"', "must be a whole number"),
        ("http.max_body", "1023", 'must be from "1KiB" to "16MiB", not 1023'),
        ("http.max_body", '"17MiB"', 'must be from "1KiB" to "16MiB"'),
        ("http.max_body", '"16 parsecs"', "must be a size"),
        ("http.body_memory", '"1MiB"', "is smaller than max_body"),
        ("retention.bodies", '"31d"', "is longer than metadata"),
        ("retention.bodies", '"59m"', 'must be at least 1h, not "59m"'),
        ("retention.metadata", '"23h"', 'must be at least 24h, not "23h"'),
        ("retention.webhook_logs", '"31d"', "is longer than metadata"),
        ("retention.webhook_logs", '"0s"', "must be over zero"),
        ("http.tls_cert", '"missing.pem"', "no such file: /srv/missing.pem"),
        ("smtp.allow_plaintext_auth", "1", "must be true or false, not 1"),
        ("acme.email", '"postmaster"', "must be a mail address"),
        ("acme.email", '"a@example.com?cc=b@example.com"', "must be a mail address"),
        ("acme.email", '"a@b@example.com"', "must be a mail address"),
        ("acme.directory", '"http://ca.example.com/directory"', "must be an https URL"),
        ("acme.directory", '"https://ca.example.com/dir ectory"', "must be an https URL"),
        ("acme.directory", '"https://u:p@ca.example.com/directory"', "must be an https URL"),
        ("acme.directory", '""', "must be an https URL"),
        ("acme.names", '["*.example.com"]', "must be a host name"),
        ("acme.bind", "[]", "must not be empty"),
        ("acme.renew_before", '"0s"', "must be over zero"),
        ("dns.resolvers", '["dns.example.com"]', "must be an IP address"),
        ("dns.resolvers", '["127.0.0.1:0"]', "must be an IP address"),
        ("delivery.mode", '"drect"', 'must be one of "direct", "relay", "sandbox", not "drect"'),
        ("delivery.mode", "[]", "must be one of"),
        ("warmup.growth", "0.9", "must be a number from 1 to 3, not 0.9"),
        ("warmup.growth", "nan", "must be a number from 1 to 3"),
        ("warmup.growth", "true", "must be a number from 1 to 3, not true"),
        ("warmup.growth", '"1.4"', "must be a number from 1 to 3"),
        ("warmup.first_hour", "0", "must be a whole number from 1 to 1000000, not 0"),
        ("delivery.mx_port", "0", "must be a whole number from 1 to 65535, not 0"),
        ("delivery.mx_port", "65536", "must be a whole number from 1 to 65535"),
        ("delivery.retry_delays", "[]", "must not be empty"),
        ("delivery.retry_delays", '["-5m"]', "must be a duration"),
        ("delivery.ca_file", '"missing.pem"', "no such file"),
        ("delivery.relay_host", '"a..b"', "must be a host name or an IP address"),
        ("delivery.relay_port", "0", "must be a whole number from 1 to 65535"),
        ("delivery.relay_username", '"a\\u0000b"', "must be text without control characters"),
        ("delivery.relay_password", "12345", "must be text without control characters"),
        ("delivery.relay_tls", '"yes"', 'must be one of "required", "opportunistic", "implicit", "off", not "yes"'),
        ("delivery.own_addresses", '["192.0.2.0/24"]', "must be an IP address"),
        ("delivery.sessions", "0", "must be a whole number from 1 to 10000"),
        ("webhooks.ports", "[]", "must not be empty"),
        ("webhooks.ca_file", "1", "must be a file"),
        ("limits.requests_per_second", "-1", "must be a whole number"),
        ("limits.min_free_disk", "-1", "must be under 8EiB"),
        ("limits.min_free_disk", f'"{"9" * 19}TiB"', "must be under 8EiB"),
        ("limits.min_free_disk_percent", "100", "must be a whole number from 0 to 99"),
        *(
            ("limits.stored_bytes_per_account", odd, 'must be a share such as "25%", a size such as "10GiB", or "0"')
            for odd in ('"0%"', '"101%"', '"-5%"', '"2.5%"', '"%"', '"٣%"', '"many"', '"-1"', "-1", "0.25", "true")
        ),
    ],
)
def test_a_value_that_cannot_be(key: str, value: str, reason: str) -> None:
    assert refusal(setting(key, value)).startswith(f"{key}: {reason}")


@pytest.mark.parametrize("section", ["http", "smtp", "inbound"])
@pytest.mark.parametrize(("given_key", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_certificate_and_key_go_together(section: str, given_key: str, missing: str, tmp_path: Path) -> None:
    """One of the two alone would be a server without TLS that looks like one with it."""
    (tmp_path / "tls.pem").touch()
    text = setting(f"{section}.{given_key}", '"tls.pem"')
    assert refusal(text, tmp_path / "config.toml") == f"{section}.{missing}: missing, though {given_key} is set"


def acme(text: str = "", server: str = 'hostname = "mail.example.com"') -> str:
    return f"[server]\n{server}\n[acme]\nenabled = true\n{text}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (acme(), ("mail.example.com",)),
        (acme('[http]\nbase_url = "https://app.example.com:8443"'), ("mail.example.com", "app.example.com")),
        (acme('[http]\nbase_url = "https://mail.example.com"'), ("mail.example.com",)),
        (acme('[http]\nbase_url = "https://192.0.2.7"'), ("mail.example.com",)),
        (acme('http = false\n[http]\nbase_url = "https://app.example.com"'), ("mail.example.com",)),
        (acme('names = ["Other.example.com"]'), ("other.example.com",)),
        (acme('[http]\nbase_url = "https://app.example.com"', 'hostname = "mail"'), ("app.example.com",)),
        ("", ()),
    ],
)
def test_the_names_of_a_certificate(text: str, names: tuple[str, ...]) -> None:
    assert parse(text, FILE).acme.names == names


def test_a_certificate_by_acme_makes_it_https() -> None:
    bind = '[http]\nbind = ["0.0.0.0:443"]'
    assert parse(acme(bind), FILE).http.base_url == "https://mail.example.com:443"
    assert parse(acme(f"http = false\n{bind}"), FILE).http.base_url == "http://mail.example.com:443"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (acme("", 'hostname = "mail"'), 'acme.names: missing: "mail" (server.hostname) is no name that an authority'),
        (acme('names = ["localhost"]'), 'acme.names: "localhost" is no name that an authority could look up'),
        (acme('[http]\nbind = ["0.0.0.0:80"]'), "acme.bind: 0.0.0.0:80 conflicts with 0.0.0.0:80 of http.bind"),
        (acme('[http]\nbind = ["127.0.0.1:80"]'), "acme.bind: 0.0.0.0:80 conflicts with 127.0.0.1:80 of http."),
        (acme('bind = ["[::1]:25"]\n[smtp]\nbind = ["[::]:25"]'), "acme.bind: [::1]:25 conflicts with [::]:25"),
        (acme('[metrics]\nbind = ["127.0.0.1:80"]'), "acme.bind: 0.0.0.0:80 conflicts with 127.0.0.1:80 of metr"),
        (acme('[inbound]\nbind = ["127.0.0.1:80"]'), "acme.bind: 0.0.0.0:80 conflicts with 127.0.0.1:80 of inbo"),
        (acme("http = false\n[smtp]\nbind = []\nbind_tls = []"), "acme.enabled: true, though no listener would use"),
    ],
)
def test_acme_settings_that_cannot_be(text: str, line: str) -> None:
    assert refusal(text).startswith(line)


@pytest.mark.parametrize(
    "text",
    [
        acme('bind = ["0.0.0.0:80"]\n[http]\nbind = ["[::]:80"]'),
        acme('bind = ["127.0.0.1:80"]\n[http]\nbind = ["192.0.2.1:80"]'),
        acme('bind = ["127.0.0.1:0"]\n[http]\nbind = ["127.0.0.1:0"]'),
        '[acme]\nnames = ["localhost"]\n[http]\nbind = ["0.0.0.0:80"]',
    ],
)
def test_listeners_that_do_not_collide(text: str) -> None:
    parse(text, FILE)


def test_a_long_value_is_cut() -> None:
    line = refusal(setting("delivery.mode", f'"{"x" * 5000}"'))
    assert len(line) < 200
    assert line.endswith("…")


TOML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ROWS = [row for section in SECTIONS for row in settings(section)]
ROWS += [row for section in SECTIONS for kind in named_tables(section) for row in kind.settings("x")]


@given(st.sampled_from(ROWS), TOML_VALUES)
def test_no_value_does_anything_but_read_or_give_a_reason(row: Setting, value: object) -> None:
    with contextlib.suppress(ValueError):
        row.kind.read(value)


# Which file


def test_the_named_file_comes_first(nowhere: Path) -> None:
    """--config goes before the variable, that before ./config.toml, that before /etc."""
    environ = {config.VARIABLE: str(write(nowhere / "variable.toml", "variable"))}
    write(config.SYSTEM_FILE, "system")
    assert load(None, {}, nowhere).server.hostname == "system"
    write(nowhere / "config.toml", "local")
    assert load(None, {}, nowhere).server.hostname == "local"
    assert load(None, {config.VARIABLE: ""}, nowhere).server.hostname == "local"
    assert load(None, environ, nowhere).server.hostname == "variable"
    named = load(write(nowhere / "named.toml", "named"), environ, nowhere)
    assert named.server.hostname == "named"
    assert named.source == nowhere / "named.toml"


def test_a_named_file_may_be_relative(nowhere: Path) -> None:
    write(nowhere / "named.toml", "named")
    assert load(Path("named.toml"), {}, nowhere).server.hostname == "named"
    assert load(None, {config.VARIABLE: "named.toml"}, nowhere).server.hostname == "named"


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_named_file_must_be_there(how: str, nowhere: Path) -> None:
    write(nowhere / "config.toml", "local")
    named, environ = (Path("gone.toml"), {}) if how == "option" else (None, {config.VARIABLE: "gone.toml"})
    with pytest.raises(ConfigError) as refused:
        load(named, environ, nowhere)
    assert str(refused.value) == f"{nowhere}/gone.toml: cannot be read: No such file or directory"


HINT = " (if this file is another program's: start in another directory, or name your own with --config)"
LOCAL_FILES = {
    "a directory": (None, "cannot be read: Is a directory"),
    "no text": (b"\xff\xfe", "is not UTF-8 text"),
    "another program's": (b'title = "Hugo"\n[params]\nserver = "mx"\n', "title: unknown section"),
    "no TOML": (b"<server>\n", "line 1, column 1: Invalid statement"),
    "a slip in the only section": (b'[servr]\nhostname = "a"\n', 'servr: unknown section; did you mean "server"?'),
}


@pytest.mark.parametrize("name", LOCAL_FILES)
def test_a_local_file_of_no_use_is_refused_and_named(nowhere: Path, name: str) -> None:
    content, reason = LOCAL_FILES[name]
    local = nowhere / "config.toml"
    local.mkdir() if content is None else local.write_bytes(content)
    write(config.SYSTEM_FILE, "system")
    with pytest.raises(ConfigError) as refused:
        load(None, {}, nowhere)
    assert str(refused.value) == f"{local}: {reason}{HINT}"
    with pytest.raises(ConfigError) as refused:
        load(Path("config.toml"), {}, nowhere)
    assert str(refused.value) == f"{local}: {reason}"


@pytest.mark.parametrize("text", ["[server]\nhostnam = 1", "[http", "[[smtp]]", " [ delivery ]\nx"])
def test_a_local_file_with_a_fault_is_ours(nowhere: Path, text: str) -> None:
    (nowhere / "config.toml").write_text(text)
    write(config.SYSTEM_FILE, "system")
    with pytest.raises(ConfigError, match=r"config\.toml: ") as refused:
        load(None, {}, nowhere)
    assert HINT not in str(refused.value)


@pytest.mark.parametrize("text", ["", "\n", "# to be written\n", 'server.hostname = "dotted"\n'])
def test_a_local_file_without_a_section_is_used(nowhere: Path, text: str) -> None:
    (nowhere / "config.toml").write_text(text)
    write(config.SYSTEM_FILE, "system")
    assert load(None, {}, nowhere).source == nowhere / "config.toml"


def test_without_a_file_variables_move_it(nowhere: Path) -> None:
    environ = {"APPLIANCE_HTTP_PORT": "9000", "APPLIANCE_SMTP_PORT": "2525", "APPLIANCE_DATA_DIR": "elsewhere"}
    made, usual = load(None, environ, nowhere), load(None, {}, nowhere)
    assert (made.http.bind, made.http.base_url) == ((("127.0.0.1", 9000),), "http://127.0.0.1:9000")
    assert made.smtp.bind == (("127.0.0.1", 2525),)
    assert made.server.data_dir == nowhere / "elsewhere"
    assert (made.delivery, made.embedded) == (usual.delivery, True)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"APPLIANCE_HTTP_PORT": "many"}, "$APPLIANCE_HTTP_PORT: must be"),
        ({"APPLIANCE_HTTP_PORT": "0"}, "$APPLIANCE_HTTP_PORT: must be"),
        ({"APPLIANCE_SMTP_PORT": "65536"}, "$APPLIANCE_SMTP_PORT: must be"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(nowhere: Path, environ: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, environ, nowhere)
    assert str(refused.value).startswith(reason)


def test_a_variable_beside_a_file_is_refused(nowhere: Path) -> None:
    """It would be without effect, and no one would know."""
    write(nowhere / "config.toml", "local")
    with pytest.raises(ConfigError, match=r"APPLIANCE_HTTP_PORT: is only for a start without .*: set http\.bind in"):
        load(None, {"APPLIANCE_HTTP_PORT": "9000"}, nowhere)


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to become another user")
def test_a_directory_that_may_not_be_looked_into_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as name:
        directory, home = Path(name), Path(name, "home")
        home.mkdir()
        directory.chmod(0o755)
        monkeypatch.setattr(config, "SYSTEM_FILE", write(directory / "system.toml", "system"))
        write(home / "config.toml", "local").chmod(0o600)
        home.chmod(0o700)
        with as_another_user():
            assert load(None, {}, home).server.hostname == "system"
            with pytest.raises(ConfigError, match=r"config\.toml: cannot be read: Permission denied"):
                load(Path("config.toml"), {}, home)
        home.chmod(0o755)
        with as_another_user(), pytest.raises(ConfigError) as refused:
            load(None, {}, home)
        assert str(refused.value) == f"{home}/config.toml: cannot be read: Permission denied{HINT}"


def test_without_any_file_nothing_leaves_the_machine(nowhere: Path) -> None:
    made: Config = load(None, {}, nowhere)
    assert (made.embedded, made.source) == (True, None)
    assert made.server.hostname == "localhost"
    assert made.server.data_dir == nowhere / "appliance-data"
    assert (made.http.bind, made.http.base_url) == ((("127.0.0.1", 8080),), "http://127.0.0.1:8080")
    assert (made.smtp.bind, made.smtp.bind_tls) == ((("127.0.0.1", 2587),), ())
    assert made.delivery.mode is DeliveryMode.SANDBOX


# Source addresses


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[delivery.sources.a]", "delivery.sources.a.ipv4: missing: a source needs ipv4, ipv6 or both"),
        ('[delivery.sources.a]\nipv4 = "2001:db8::1"', "delivery.sources.a.ipv4: 2001:db8::1 is an IPv6 address"),
        ('[delivery.sources.a]\nipv6 = "192.0.2.1"', "delivery.sources.a.ipv6: 192.0.2.1 is an IPv4 address"),
        (
            '[delivery.sources.a]\nipv4 = "0.0.0.0"',
            "delivery.sources.a.ipv4: 0.0.0.0 is no address that mail can leave",
        ),
        (
            '[delivery.sources.a]\nipv4 = "192.0.2.1"\n[delivery.sources.b]\nipv4 = "192.0.2.1"',
            "delivery.sources.b.ipv4: 192.0.2.1 belongs to the source a already",
        ),
        (
            '[delivery.streams.digest]\nsources = ["a"]',
            "delivery.streams.digest.sources: there is no source a; define it as [delivery.sources.NAME]",
        ),
        (
            '[delivery.sources.a]\nipv4 = "192.0.2.1"\n[delivery.streams.digest]\nsources = ["a", "b"]',
            "delivery.streams.digest.sources: there is no source b; expected a",
        ),
        (
            '[delivery.sources.a]\nipv4 = "192.0.2.1"\n[delivery.streams.digest]\nsources = ["a", "a"]',
            "delivery.streams.digest.sources: names a twice",
        ),
    ],
)
def test_sources_must_fit_together(text: str, reason: str) -> None:
    assert refusal(text).startswith(reason)
