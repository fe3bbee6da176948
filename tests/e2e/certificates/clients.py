"""What clients see of a server's certificate, on each of its listeners, and what is told about it."""

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import waiting
from tests.fakes.pebble import Pebble
from tests.running_appliance import Running, appliance

NAME, SITE = "mail.example.com", "app.example.com"


@contextmanager
def certified(directory: Path, authority: Pebble, *, acme: str = "", bind: int | None = None) -> Iterator[Running]:
    """A server that has its certificates from this authority, and metrics."""
    http = f"""base_url = "https://{SITE}"
[metrics]
bind = ["127.0.0.1:0"]
[acme]
enabled = true
directory = "{authority.url}"
ca_file = "{authority.ca_file}"
bind = ["127.0.0.1:{bind or authority.http_port}"]
{acme}
"""
    with appliance(directory, http=http, dns=authority.dns) as running:
        yield running


def endpoint(running: Running, listener: str) -> tuple[str, int]:
    url = next(url for url in [running.url, *running.smtp] if url.startswith(f"{listener}:"))
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def shown(running: Running, listener: str, trust: ssl.SSLContext, name: str = NAME) -> bytes:
    """The certificate (DER) that a client sees which trusts so; ssl.SSLError if it does not trust it."""
    with socket.create_connection(endpoint(running, listener), timeout=10) as plain:
        if listener == "smtp":
            file = plain.makefile("rb")
            file.readline()
            for command in (b"EHLO client.example.com\r\n", b"STARTTLS\r\n"):
                plain.sendall(command)
                while file.readline()[3:4] == b"-":
                    pass
        with trust.wrap_socket(plain, server_hostname=name) as secure:
            certificate = secure.getpeercert(binary_form=True)
            if listener == "https":
                secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert secure.recv(100).startswith(b"HTTP/1.1 200 ")
    assert certificate is not None
    return certificate


def anything() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def trusted(running: Running, listener: str, trust: ssl.SSLContext, name: str = NAME) -> bool:
    try:
        shown(running, listener, trust, name)
    except ssl.SSLCertVerificationError:
        return False
    return True


def wait_until(condition: Callable[[], object], running: Running, within: float = waiting.PATIENCE) -> None:
    waiting.wait_until(condition, within, running.log_file.read_text)


def events(running: Running, logger: str = "appliance.acme") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in running.log_lines()]
    return [line for line in lines if line["logger"] == logger]
