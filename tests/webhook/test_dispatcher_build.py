"""The operator's settings for webhooks: trust, ports, networks, and the names of the service itself."""

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from appliance.config.load import embedded, parse
from appliance.config.settings import Config, ConfigError
from appliance.environment import Environment
from appliance.net.address_policy import Address
from appliance.webhook.dispatcher import build_poster, own_names
from tests.fakes.dns import ZoneResolver
from tests.fakes.receiver import AUTHORITY, HERE, HOST, Receiver, posting

SERVER = '[server]\nhostname = "mail.example.com"\nown_domains = ["service.example"]\n'
URL = '[http]\nbase_url = "https://API.example.com:8443"\n'


def config(text: str, file: Path = Path("/srv/config.toml")) -> Config:
    return parse(text, file)


def test_own_names() -> None:
    """The host name, the base URL's host and the own domains with all below them are the service itself."""
    names = own_names(config(SERVER + URL))
    assert names == {"mail.example.com", "api.example.com", "service.example", "*.service.example"}


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "198.51.100.7"])
def test_an_address_in_the_base_url_is_no_name(address: str) -> None:
    """Whether an address may be dialled is said by the networks that are allowed, not by where we are reached."""
    names = own_names(config(f'[http]\nbase_url = "http://{address}:8080"\n'))
    assert not {"127.0.0.1", "::1", "198.51.100.7"} & names


async def test_settings_reach_the_url_policy() -> None:
    text = f'{SERVER}{URL}[webhooks]\nports = [443, 9443]\nallow_networks = ["10.0.0.0/8"]\n'
    zone = {"in.example": {"A": ["10.0.0.7"]}, "other.example": {"A": ["192.168.0.7"]}}
    made = build_poster(config(text), ZoneResolver(zone), Environment())
    assert await made.check("https://in.example:9443/") is None
    assert await made.check("https://10.0.0.7/") is None
    assert await made.check("https://in.example:8443/") == "port 8443 is not allowed for webhooks here"
    assert "one is a private address" in str(await made.check("https://other.example/"))
    for own in ("mail.example.com", "api.example.com", "service.example", "a.service.example"):
        assert await made.check(f"https://{own}/") == f"{own} is this service itself"


async def test_public_addresses_of_the_machine_are_its_own() -> None:
    made = build_poster(config('[delivery]\nown_addresses = ["9.9.9.9"]\n'), ZoneResolver({}), Environment())
    assert "an address of this machine" in str(await made.check("https://9.9.9.9/"))


async def test_addresses_of_other_nodes_are_this_machines() -> None:
    told: set[Address] = set()
    made = build_poster(config(""), ZoneResolver({"b.example": {"A": ["9.9.9.8"]}}), Environment(), lambda: told)
    told.add(ip_address("9.9.9.8"))
    assert "one is an address of this machine" in str(await made.check("https://b.example/"))


async def test_plain_http_to_this_machine_is_refused_without_any_file(tmp_path: Path) -> None:
    settings, url = embedded(tmp_path), "http://localhost:3000/hooks"
    made = build_poster(settings, ZoneResolver({}), Environment())
    assert await made.check(url) == "the URL must begin with https://"
    made = build_poster(replace(settings, local_webhooks=True), ZoneResolver({}), Environment())
    assert await made.check(url) is None


async def test_extra_trust_comes_from_the_file(tmp_path: Path) -> None:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    receiver = Receiver()
    async with posting(receiver) as there:
        text = f'[webhooks]\nports = [{there.port}]\nallow_networks = ["127.0.0.0/8"]\n'
        for extra, accepted in (('ca_file = "ca.pem"\n', True), ("", False)):
            settings = config(text + extra, tmp_path / "config.toml")
            made = build_poster(settings, ZoneResolver(HERE), Environment())
            posted = await made.post(f"https://{HOST}:{there.port}/", [], b"{}")
            assert posted.accepted is accepted, posted
            await made.idle.aclose()
    assert len(receiver.requests) == 1


def test_a_file_without_certificates_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing of the kind")
    settings = config('[webhooks]\nca_file = "ca.pem"\n', tmp_path / "config.toml")
    with pytest.raises(ConfigError, match=r"config\.toml: webhooks\.ca_file: holds no usable certificates"):
        build_poster(settings, ZoneResolver({}), Environment())
