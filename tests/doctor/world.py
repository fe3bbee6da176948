"""A machine in order, on loopback: a real DNS server, a mail server, listeners, a database: for tests to spoil."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import trio
import trustme

from appliance.config.load import parse
from appliance.dns.records import Senders, records
from appliance.dns.resolver import DnsResolver
from appliance.doctor import Finding, FindingLevel
from appliance.doctor.examination import Examination
from appliance.environment import Environment
from appliance.keys import keyfile
from appliance.keys.dkim_keys import SigningKeys
from appliance.store import Store, open_store
from appliance.system.data_directory import only_server
from tests import stored_mail
from tests.fakes.dns import DnsServer, Records
from tests.fakes.mx import FakeMx

HOST, ADDRESS, DOMAIN = "mail.example.com", "203.0.113.7", "example.com"
REVERSE = ip_address(ADDRESS).reverse_pointer
LISTED = "7.113.0.203.bl.test"
OUTSIDE = Environment()

CONFIG = """
[server]
hostname = "{hostname}"
data_dir = "{data_dir}"
[store]
url = "{url}"
[http]
bind = ["{http_host}:{http}"]
tls_cert = "{cert}"
tls_key = "{key}"
[smtp]
bind = ["127.0.0.1:{smtp}"]
bind_tls = []
tls_cert = "{cert}"
tls_key = "{key}"
[inbound]
bind = {inbound}
[delivery]
mode = "{mode}"
mx_port = {mx}
relay_host = "{relay_host}"
relay_port = {mx}
own_addresses = {own_addresses}
relay_tls = "{relay_tls}"
{relay_login}
allow_networks = {allow_networks}
[metrics]
bind = {metrics}
[warmup]
enabled = {warmup}
[limits]
min_free_disk = "{min_free_disk}"
{acme}
"""


def installation(directory: Path, url: str = "") -> None:
    """A data directory with an account, its domain, keys and webhook: made once, for RSA keys take their time."""
    key = keyfile.load_or_create(directory)

    async def fill() -> None:
        async with open_store(directory, OUTSIDE, url=url, inline=True) as store:
            await store.installation.claim_key(keyfile.fingerprint(key))
            account = await stored_mail.account(store)
            await store.access.add_domain(account, DOMAIN, usable=True)
            await store.access.add_domain(account, "not-proven.example", usable=False)
            await SigningKeys(store, OUTSIDE, key).rotate(account, DOMAIN)
            await stored_mail.webhook(store, OUTSIDE, account, key)

    trio.run(fill)


@dataclass
class World:
    """Everything that an examination observes; each test breaks one thing of it."""

    directory: Path
    zone: dict[str, dict[str, Records]]
    settings: dict[str, Any]
    mx: FakeMx = field(default_factory=FakeMx)
    mx_listens: bool = True
    runs: bool = True
    listens: bool = True
    greets_as: str = ""  # else by the name of the settings
    env: Environment = OUTSIDE
    blocklists: tuple[str, ...] = ("bl.test",)
    dkim: dict[str, str] = field(default_factory=dict)  # the names of the DKIM records, by algorithm
    limit: float = 300.0  # seconds: a busy machine is no fault of the program

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def certify(self, **options: Any) -> None:
        names = options.pop("names", (HOST,))
        leaf = trustme.CA().issue_cert(*names, **options)
        leaf.cert_chain_pems[0].write_to_path(self.directory / "cert.pem")
        leaf.private_key_pem.write_to_path(self.directory / "key.pem")
        (self.directory / "key.pem").chmod(0o600)

    def stored(self, change: Callable[[Store], Any]) -> None:
        async def work() -> None:
            async with open_store(self.data_dir, OUTSIDE, url=self.settings["url"], inline=True) as store:
                await change(store)

        trio.run(work)

    async def examine(self) -> list[Finding]:
        dns = DnsServer(self.zone)
        async with trio.open_nursery() as nursery:
            endpoint = await nursery.start(dns.run)
            with ExitStack() as ends:
                await self._open_listeners(nursery)
                if self.runs:
                    ends.enter_context(only_server(self.data_dir))
                config = parse(CONFIG.format(**self.settings), self.directory / "config.toml")
                resolver = DnsResolver([endpoint])
                found = await Examination(config, self.env, resolver, self.blocklists, self.limit).run()
            nursery.cancel_scope.cancel()
        return found

    async def _open_listeners(self, nursery: trio.Nursery) -> None:
        async def hang_up(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):  # the other side did so already
                await stream.send_all(f"220 {self.greets_as or self.settings['hostname']} ESMTP\r\n".encode())
            await stream.aclose()

        for name in ("http", "smtp", "mx"):
            if self.settings.get(name):
                continue
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.settings[name] = listener.socket.getsockname()[1]
            listens = self.mx_listens if name == "mx" else self.listens
            if listens:
                nursery.start_soon(trio.serve_listeners, self.mx.serve if name == "mx" else hang_up, [listener])
            else:
                await listener.aclose()


def healthy(directory: Path, original: Path, url: str = "") -> World:
    shutil.copytree(original, directory / "data")
    world = World(directory, {}, {})
    world.settings |= {
        "hostname": HOST,
        "data_dir": world.data_dir,
        "url": url,
        "cert": directory / "cert.pem",
        "key": directory / "key.pem",
        "mode": "direct",
        "relay_host": "",
        "own_addresses": f'["{ADDRESS}"]',
        "min_free_disk": "0",
        "warmup": "false",
        "acme": "",
        "metrics": "[]",
        "inbound": "[]",
        "relay_tls": "required",
        "relay_login": "",
        "allow_networks": '["127.0.0.0/8"]',
        "http_host": "127.0.0.1",
    }
    world.certify()
    world.zone |= {
        HOST: {"A": [ADDRESS]},
        REVERSE: {"PTR": [f"{HOST}."]},
        DOMAIN: {"MX": [f"10 {HOST}."]},
        **{name: {"MX": ["10 mx.big.test."]} for name in ("gmail.com", "outlook.com", "yahoo.com")},
        "mx.big.test": {"A": ["127.0.0.1"]},
    }
    world.stored(lambda store: _publish(store, world))
    return world


async def _publish(store: Store, world: World) -> None:
    keys = await store.dkim_keys.of((await store.accounts.named("acme")).id, DOMAIN)
    world.dkim |= {key.algorithm: f"{key.selector}._domainkey.{DOMAIN}" for key in keys}
    for record in records(DOMAIN, Senders((HOST,)), keys, OUTSIDE.now()):
        parts = [record.value[at : at + 255] for at in range(0, len(record.value), 255)]
        text = " ".join(f'"{part}"' for part in parts)
        world.zone[record.name] = {**world.zone.get(record.name, {}), "TXT": [text]}


def wrong(found: list[Finding]) -> set[tuple[FindingLevel, str, str]]:
    return {(each.level, each.check, each.subject) for each in found if each.level is not FindingLevel.OK}
