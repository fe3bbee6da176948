"""Proxies that the environment names: which of them is used, and requests through a real one on loopback."""

import base64
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from mail_appliance import Attachment, ConfigurationError, ConnectionFailed
from mail_appliance.proxies import Proxy, proxy_for

from .conftest import MakeClient, Server, running_server

BASIC = "Basic " + base64.b64encode(b"me:a:b").decode()


def chosen(host: str = "mail.example.com", port: int = 443, *, tls: bool = True, **environment: str) -> Proxy | None:
    """The proxy of an environment."""
    return proxy_for(host, port, tls=tls, environment=environment)


def test_the_variable_of_the_scheme() -> None:
    """Each scheme has its own, ALL_PROXY is for both, and the lower-case name wins."""
    assert chosen() is None
    assert chosen(HTTP_PROXY="http://p:1") is None
    assert chosen(HTTPS_PROXY="") is None
    assert chosen(HTTPS_PROXY="http://p:1") == Proxy("p", 1)
    assert chosen(tls=False, HTTP_PROXY="p:2") == Proxy("p", 2)
    assert chosen(ALL_PROXY="http://p", https_proxy="http://q/") == Proxy("q", 80)
    assert chosen(ALL_PROXY="http://p") == Proxy("p", 80)
    assert chosen(HTTPS_PROXY="http://upper", https_proxy="http://lower") == Proxy("lower", 80)
    assert chosen(HTTPS_PROXY="http://[::1]:3128") == Proxy("::1", 3128)
    assert chosen(HTTPS_PROXY="http://me:a%3Ab@p:1") == Proxy("p", 1, BASIC)


def test_a_cgi_program_ignores_what_its_client_can_set() -> None:
    """The header `Proxy` of a request to it becomes HTTP_PROXY."""
    assert chosen(tls=False, HTTP_PROXY="http://evil", REQUEST_METHOD="POST") is None
    assert chosen(tls=False, http_proxy="http://p", REQUEST_METHOD="POST") == Proxy("p", 80)


@pytest.mark.parametrize("names", ["*", "mail.example.com", "example.com", ".example.com", "a, Mail.Example.com:443"])
def test_hosts_without_a_proxy(names: str) -> None:
    """NO_PROXY names hosts and their domains."""
    assert chosen(HTTPS_PROXY="http://p", NO_PROXY=names) is None
    assert chosen(HTTPS_PROXY="http://p", no_proxy=names) is None


@pytest.mark.parametrize("names", ["", "ample.com", "other.example.com", "mail.example.com:8443"])
def test_hosts_that_are_not_excepted(names: str) -> None:
    """Another name, a part of a name, another port."""
    assert chosen(HTTPS_PROXY="http://p", NO_PROXY=names) == Proxy("p", 80)


@pytest.mark.parametrize("url", ["socks5://p:1080", "https://secret@p", "http://", "http://secret@p:port", "http://[p"])
def test_a_proxy_that_cannot_be_used(url: str) -> None:
    """The error names the variable, and does not show a password."""
    with pytest.raises(ConfigurationError, match=r"^HTTPS_PROXY: .* Use http://host:port") as caught:
        chosen(HTTPS_PROXY=url)
    assert "secret" not in str(caught.value)


# ---- through a proxy


class RunningProxy(ThreadingHTTPServer):
    """An HTTP proxy on loopback. It answers `refusals` first, then passes everything."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.seen: list[tuple[str, str | None]] = []  # request line and Proxy-Authorization
        self.refusals: list[int] = []

    @property
    def url(self) -> str:
        return f"http://me:a%3Ab@127.0.0.1:{self.server_port}"


class Passing(BaseHTTPRequestHandler):
    """Forwards a request in absolute form, or opens a tunnel."""

    protocol_version = "HTTP/1.1"
    server: RunningProxy

    def log_message(self, *_: Any) -> None:
        pass

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.seen.append((f"{self.command} {self.path}", self.headers["Proxy-Authorization"]))
        if self.server.refusals:
            self.send_error(self.server.refusals.pop(0))
            return False
        return parsed

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        connection = HTTPConnection(url.netloc)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name != "Proxy-Authorization"}
        connection.request(self.command, url.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def do_CONNECT(self) -> None:
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as other, suppress(OSError):
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: other, other: self.connection}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    if not (data := end.recv(65536)):
                        self.close_connection = True
                        return
                    ends[end].sendall(data)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningProxy]:
    """A running proxy; the environment names it for both schemes."""
    with RunningProxy() as running:
        monkeypatch.setenv("HTTP_PROXY", running.url)
        monkeypatch.setenv("HTTPS_PROXY", running.url)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_http_through_the_proxy(proxy: RunningProxy, server: Server, make_client: MakeClient) -> None:
    """Requests are in absolute form, on one kept connection to the proxy."""
    mail = make_client(server.url)
    sent = mail.send()
    assert mail.get(sent.id).status == "delivered"
    assert proxy.seen == [(f"POST {server.url}/emails", BASIC), (f"GET {server.url}/emails/{sent.id}", BASIC)]
    assert [request.headers["host"] for request in server.requests] == [f"127.0.0.1:{server.port}"] * 2


@pytest.fixture
def secured(proxy: RunningProxy) -> Iterator[tuple[Server, ssl.SSLContext]]:
    """A server with TLS, and a context that trusts it."""
    authority, context, trusting = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(trusting)
    with running_server(context) as running:
        yield running, trusting


def test_https_through_a_tunnel(
    proxy: RunningProxy, secured: tuple[Server, ssl.SSLContext], make_client: MakeClient
) -> None:
    """One tunnel carries all requests unseen by the proxy, and the server does not see the proxy's password."""
    server, trusting = secured
    mail = make_client(server.url, ssl_context=trusting)
    mail.send(attachments=[Attachment("a", bytes(2_000_000))])
    mail.send()
    assert proxy.seen == [(f"CONNECT 127.0.0.1:{server.port}", BASIC)]
    assert len(server.requests) == 2
    assert "proxy-authorization" not in server.requests[0].headers


def test_a_proxy_that_refuses(
    proxy: RunningProxy, secured: tuple[Server, ssl.SSLContext], make_client: MakeClient
) -> None:
    """A refusal is final; a proxy's own failure is retried."""
    server, trusting = secured
    mail = make_client(server.url, ssl_context=trusting)
    proxy.refusals += [407]
    with pytest.raises(
        ConnectionFailed, match=rf"proxy 127\.0\.0\.1:{proxy.server_port} answered CONNECT with status 407"
    ):
        mail.send()
    assert len(proxy.seen) == 1
    proxy.refusals += [502]
    mail.send()
    assert len(server.requests) == 1


def test_a_server_that_is_no_proxy(monkeypatch: pytest.MonkeyPatch, make_client: MakeClient) -> None:
    """What it says instead of HTTP is an error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"220 smtp.example.com ESMTP\r\n\r\n")
                sock.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ConnectionFailed, match="did not answer CONNECT with HTTP"):
            make_client("https://mail.example.com", retries=0).send()
        thread.join()


def test_excepted_hosts_are_reached_directly(
    proxy: RunningProxy, server: Server, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NO_PROXY says."""
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    make_client(server.url).send()
    assert (proxy.seen, len(server.requests)) == ([], 1)
