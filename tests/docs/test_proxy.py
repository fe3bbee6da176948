"""The files of docs/proxy.md, each run by the real proxy in front of the real program."""

import http.server
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from appliance.tls.certificate import generate
from tests.docs.documents import BLOCKS
from tests.ports import free_port
from tests.programs import require
from tests.running_appliance import PASSWORD, Running, appliance

NAME = "mail.example.com"
MIB = 1024 * 1024
START_TIMEOUT = 30.0  # seconds
CLIENT = "127.0.0.77"  # the address that the client connects from
HTTP = f'base_url = "https://{NAME}"\ntrusted_proxies = ["127.0.0.1"]'
BUFFERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # directories that nginx makes


class Ports(NamedTuple):
    """Where a proxy listens, and what it passes requests on to."""

    http: int
    https: int
    appliance: int
    acme: int


Start = Callable[[Path, str, Ports], list[str]]  # writes the file of a proxy; the command that runs it


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(directory: Path, text: str, ports: Ports) -> list[str]:
    text = replaced(
        text,
        ("listen 80;", f"listen 127.0.0.1:{ports.http};"),
        ("    listen [::]:80;\n", ""),
        ("listen 443 ", f"listen 127.0.0.1:{ports.https} "),
        ("    listen [::]:443 ssl http2;\n", ""),
        ("/etc/nginx/mail.example.com.crt", str(directory / "certificate.pem")),
        ("/etc/nginx/mail.example.com.key", str(directory / "certificate.pem")),
        ("127.0.0.1:8080", f"127.0.0.1:{ports.appliance}"),
        ("127.0.0.1:8081", f"127.0.0.1:{ports.acme}"),
    )
    (directory / "mail.conf").write_text(text)
    buffers = " ".join(f"{name}_temp_path {directory}/{name};" for name in BUFFERS)
    user = "user root;" if os.geteuid() == 0 else ""
    main = f"{user} daemon off; pid {directory}/pid; error_log {directory}/log; events {{}}"
    (directory / "nginx.conf").write_text(f"{main} http {{ access_log off; {buffers} include {directory}/mail.conf; }}")
    return [require("nginx"), "-e", str(directory / "log"), "-p", str(directory), "-c", str(directory / "nginx.conf")]


def caddy(directory: Path, text: str, ports: Ports) -> list[str]:
    certificate = directory / "certificate.pem"
    text = replaced(
        text,
        ("http://mail.example.com {", f"http://mail.example.com:{ports.http} {{"),
        ("\nmail.example.com {", f"\nmail.example.com:{ports.https} {{\n\ttls {certificate} {certificate}"),
        ("127.0.0.1:8080", f"127.0.0.1:{ports.appliance}"),
        ("127.0.0.1:8081", f"127.0.0.1:{ports.acme}"),
    )
    (directory / "Caddyfile").write_text("{\n\tadmin off\n\tdefault_bind 127.0.0.1\n}\n" + text)
    return [require("caddy"), "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")]


def haproxy(directory: Path, text: str, ports: Ports) -> list[str]:
    text = replaced(
        text,
        ("bind :80\n", f"bind 127.0.0.1:{ports.http}\n"),
        ("bind :443 ", f"bind 127.0.0.1:{ports.https} "),
        ("/etc/haproxy/mail.example.com.pem", str(directory / "certificate.pem")),
        ("127.0.0.1:8080", f"127.0.0.1:{ports.appliance}"),
        ("127.0.0.1:8081", f"127.0.0.1:{ports.acme}"),
    )
    (directory / "haproxy.cfg").write_text(text)
    return [require("haproxy"), "-db", "-f", str(directory / "haproxy.cfg")]


PROXIES: dict[str, Start] = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy}


def block(language: str, number: int = 0) -> str:
    return "\n" + [each.text for each in BLOCKS if each.document == "proxy.md" and each.language == language][number]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def proxy(directory: Path, language: str, ports: Ports) -> Iterator[None]:
    directory.mkdir()
    generate(directory / "certificate.pem", directory / "certificate.pem", NAME)
    command = PROXIES[language](directory, block(language), ports)
    environment = {**os.environ, "HOME": str(directory), "XDG_DATA_HOME": str(directory)}
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        for port in (ports.http, ports.https):
            while not listens(port):
                ended = process.poll() is not None or time.monotonic() > deadline
                assert not ended, (directory / "output").read_text()
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # HAProxy 2.6 sometimes misses a SIGTERM on a busy machine
            process.kill()
            process.wait()


@contextmanager
def acme_answers() -> Iterator[int]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.path.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def client(directory: Path, port: int) -> httpx.Client:
    trust = ssl.create_default_context(cafile=str(directory / "certificate.pem"))
    transport = httpx.HTTPTransport(verify=trust, local_address=CLIENT)
    return httpx.Client(transport=transport, base_url=f"https://127.0.0.1:{port}", headers={"Host": NAME}, timeout=60)


SNI = {"sni_hostname": NAME}


def check_bodies(web: httpx.Client, running: Running) -> None:
    message = json.dumps(
        {"from": "shop@example.com", "to": ["ada@example.net"], "subject": "Hi", "text": "x" * 5_000_000}
    )
    for size, status in ((12_000_000, 202), (16 * MIB, 202), (16 * MIB + 1, 413), (40 * MIB, 413)):
        headers = {**running.account.bearer, "Idempotency-Key": f"of {size}", "Content-Type": "application/json"}
        body = message.encode().ljust(size)
        # On a busy machine a proxy may not have read the 413 when the appliance, which waits for a while, closes.
        for _ in range(1 if status == 202 else 5):
            with suppress(httpx.TransportError):
                answer = web.post("/emails", content=body, headers=headers, extensions=SNI)
                if answer.status_code == status:
                    break
        assert answer.status_code == status, (size, answer.text)
        if status == 413:
            assert answer.json()["code"] == "payload_too_large"
            assert answer.json()["request_id"].startswith("req_")


def check_address(web: httpx.Client, running: Running) -> dict[str, str]:
    login = {"email": running.account.email, "password": PASSWORD}
    claim = {"X-Forwarded-For": "203.0.113.9"}
    answer = web.post("/v1/auth/login", json=login, headers=claim, extensions=SNI)
    token = {"Authorization": f"Bearer {answer.json()['token']}"}
    audit = web.get("/v1/audit", params={"action": "user.logged_in"}, headers=token, extensions=SNI).json()["audit"]
    assert [entry["address"] for entry in audit] == [CLIENT]
    return token


def check_stream(web: httpx.Client, token: dict[str, str]) -> None:
    with web.stream("GET", "/dashboard/live", headers=token, extensions=SNI) as answer:
        assert answer.status_code == 200
        pieces = answer.iter_raw()
        assert [next(pieces), next(pieces)] == [b"\n", b"\n"]


@pytest.mark.parametrize("language", PROXIES)
def test_a_proxy_in_front(tmp_path: Path, language: str) -> None:
    require(language)
    with acme_answers() as acme, appliance(tmp_path, http=HTTP) as running:
        ports = Ports(free_port(), free_port(), httpx.URL(running.url).port or 0, acme)
        with proxy(tmp_path / "proxy", language, ports), client(tmp_path / "proxy", ports.https) as web:
            check_bodies(web, running)
            check_stream(web, check_address(web, running))
            plain, path = f"http://127.0.0.1:{ports.http}", "/.well-known/acme-challenge/token"
            assert web.get(f"{plain}{path}").text == path
            moved = web.get(f"{plain}/emails")
            assert (moved.status_code, moved.headers["location"]) == (301, f"https://{NAME}/emails")


def test_haproxy_takes_the_backend_of_several_nodes(tmp_path: Path) -> None:
    whole, several = block("haproxy"), block("haproxy", 1)
    start, end = whole.index("\nbackend appliance\n"), whole.index("\nbackend acme\n")
    certificate = tmp_path / "certificate.pem"
    generate(certificate, certificate, NAME)
    text = replaced(f"{whole[:start]}{several}\n{whole[end:]}", ("/etc/haproxy/mail.example.com.pem", str(certificate)))
    (tmp_path / "haproxy.cfg").write_text(text)
    checked = subprocess.run(
        [require("haproxy"), "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
