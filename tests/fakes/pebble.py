"""Debian's `pebble`, a real ACME authority for tests, on loopback: it looks names up in our fake DNS."""

import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import trustme

from tests.fakes.dns import DnsServer
from tests.fakes.dns_thread import served
from tests.ports import free_port
from tests.programs import find, needs

PROGRAM = find("pebble")
needs_pebble = needs("pebble")
START_TIMEOUT = 60.0  # seconds


@dataclass
class Pebble:
    """An authority that can be stopped and started; every start makes new roots, and forgets all accounts."""

    directory: Path
    dns: str
    http_port: int  # where it asks its questions, on 127.0.0.1
    options: dict[str, object] = field(default_factory=dict)  # of its configuration
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    management: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        authority = trustme.CA()
        leaf = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(self.ca_file)
        leaf.cert_chain_pems[0].write_to_path(self.directory / "pebble-cert.pem")
        leaf.private_key_pem.write_to_path(self.directory / "pebble-key.pem")

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/dir"

    @property
    def ca_file(self) -> Path:
        return self.directory / "pebble-ca.pem"

    @property
    def log(self) -> str:
        return (self.directory / "pebble.log").read_text()

    def start(self) -> None:
        assert PROGRAM is not None
        settings = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{self.management}",
            "certificate": str(self.directory / "pebble-cert.pem"),
            "privateKey": str(self.directory / "pebble-key.pem"),
            "httpPort": self.http_port,
            "tlsPort": free_port(),
            **self.options,
        }
        config = self.directory / "pebble.json"
        config.write_text(json.dumps({"pebble": settings}))
        quick = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0", "PEBBLE_AUTHZREUSE": "0"}
        with (self.directory / "pebble.log").open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "-config", str(config), "-dnsserver", self.dns, "-strict"],
                stdout=log,
                stderr=log,
                env={**os.environ, **quick, **self.environment},
            )
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                httpx.get(self.url, verify=ssl.create_default_context(cafile=str(self.ca_file)), trust_env=False)
            except httpx.TransportError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"pebble did not start:\n{self.log}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def root(self) -> ssl.SSLContext:
        trusted = ssl.create_default_context(cafile=str(self.ca_file))
        pem = httpx.get(f"https://127.0.0.1:{self.management}/roots/0", verify=trusted, trust_env=False).text
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=pem)
        return context


@contextmanager
def pebble(directory: Path, *names: str, started: bool = True, **options: object) -> Iterator[Pebble]:
    """An authority for which these names lead to 127.0.0.1; environment variables are given in upper case."""
    zone = {name: {"A": ["127.0.0.1"]} for name in names}
    environment = {key: str(value) for key, value in options.items() if key.isupper()}
    settings = {key: value for key, value in options.items() if not key.isupper()}
    with served(DnsServer(zone)) as dns:
        authority = Pebble(directory, str(dns), free_port(), settings, environment)
        try:
            if started:
                authority.start()
            yield authority
        finally:
            authority.stop()
