"""A reload changes all settings that can change, or none, and names the rest."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.config.load import LIVE, Changes, LiveSettings, parse
from appliance.config.settings import SECTIONS, Config, ConfigError, settings

FILE = Path("/etc/appliance/config.toml")
DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


class Part:
    """A part of the program that takes settings over, unless it is to refuse them."""

    def __init__(self, live: LiveSettings, *, refuses: bool = False) -> None:
        self.config: Config | None = None
        self.refuses = refuses
        live.join(self.prepare)

    def prepare(self, config: Config) -> Callable[[], None]:
        if self.refuses:
            raise OSError("no such certificate")
        return lambda: setattr(self, "config", config)


def test_what_can_change_does_and_the_rest_is_named() -> None:
    live = LiveSettings(parse("", FILE))
    part = Part(live)
    new = parse('[limits]\nrequests_per_second = 5\n[delivery]\nmode = "sandbox"\nmx_port = 2525\n', FILE)
    assert live.take_over(new) == Changes(("limits.requests_per_second",), ("delivery.mode", "delivery.mx_port"))
    assert part.config is live.config
    assert live.config == parse("[limits]\nrequests_per_second = 5\n", FILE)


def test_a_restart_is_asked_for_until_it_comes() -> None:
    live = LiveSettings(parse("", FILE))
    new = parse(
        '[http]\nmax_connections = 7\n[delivery.pools.google]\nconcurrency = 2\n[server]\nhostname = "b.test"\n', FILE
    )
    first, second = live.take_over(new), live.take_over(new)
    assert first.adopted == ("http.max_connections",)
    assert second == Changes((), first.need_restart)
    assert "server.hostname" in first.need_restart
    assert "delivery.pools" in first.need_restart


def test_nothing_changes_when_one_part_refuses() -> None:
    live = LiveSettings(parse("", FILE))
    first, last = Part(live), Part(live, refuses=True)
    before = live.config
    with pytest.raises(OSError, match="no such certificate"):
        live.take_over(parse("[limits]\nrequests_per_second = 5\n", FILE))
    assert (live.config, first.config, last.config) == (before, None, None)


@pytest.mark.parametrize("to_https", [True, False])
def test_http_does_not_turn_into_https_live(tmp_path: Path, to_https: bool) -> None:
    for name in ("a.pem", "b.pem"):
        (tmp_path / name).touch()

    def https(name: str) -> Config:
        return parse(
            f'[http]\nbase_url = "http://x.test"\ntls_cert = "{name}"\ntls_key = "{name}"\n', tmp_path / "c.toml"
        )

    plain = parse('[http]\nbase_url = "http://x.test"\n', tmp_path / "c.toml")
    both = ("http.tls_cert", "http.tls_key")
    assert LiveSettings(https("a.pem")).take_over(https("b.pem")) == Changes(both, ())
    old, new = (plain, https("a.pem")) if to_https else (https("a.pem"), plain)
    assert LiveSettings(old).take_over(new) == Changes((), both)


def test_files_for_https_come_and_go_live_beside_acme(tmp_path: Path) -> None:
    (tmp_path / "a.pem").touch()
    acme = '[server]\nhostname = "mail.example.com"\n[acme]\nenabled = true\n[http]\n'
    by_acme = parse(acme, tmp_path / "c.toml")
    own = parse(f'{acme}tls_cert = "a.pem"\ntls_key = "a.pem"\n', tmp_path / "c.toml")
    both = ("http.tls_cert", "http.tls_key")
    assert LiveSettings(by_acme).take_over(own) == Changes(both, ())
    assert LiveSettings(own).take_over(by_acme) == Changes(both, ())


def test_settings_that_contradict_each_other_are_refused() -> None:
    live = LiveSettings(parse('[http]\nmax_body = "1MiB"\nbody_memory = "2MiB"\n', FILE))
    with pytest.raises(ConfigError, match=r"http\.max_body: .* restart"):
        live.take_over(parse('[http]\nmax_body = "4MiB"\nbody_memory = "8MiB"\n', FILE))


def test_every_live_key_is_a_setting() -> None:
    assert {f"{section}.{row.key}" for section in SECTIONS for row in settings(section)} >= LIVE


def test_the_document_lists_the_live_keys() -> None:
    chapter = re.search(r"^## Changing settings\n(.*?)^## ", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    assert chapter is not None
    rows = re.findall(r"^\| `\[(\w+)\]` \| (.*) \|$", chapter[1], re.MULTILINE)
    assert {f"{section}.{key}" for section, keys in rows for key in re.findall(r"`(\w+)`", keys)} == LIVE
