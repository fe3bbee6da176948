"""A customer's HTTPS server in a thread, for tests that start the real program: it notes every post, and answers."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

ADDRESS = "127.0.0.1"  # the one that the program itself is reached by, too


@dataclass(frozen=True)
class Post:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    at: float = field(default_factory=time.time)

    def json(self) -> Any:
        return json.loads(self.body)


Answer = tuple[int, bytes]


def well(_: Post) -> Answer:
    return 200, b"ok"


@dataclass
class Hooks:
    """The server; each path is answered as the test says, with 200 unless it says anything."""

    port: int = 0
    posts: list[Post] = field(default_factory=list)
    answers: dict[str, Callable[[Post], Answer]] = field(default_factory=dict)

    def url(self, path: str) -> str:
        return f"https://{ADDRESS}:{self.port}{path}"

    def at(self, path: str) -> list[Post]:
        return [post for post in list(self.posts) if post.path == path]

    def settings(self, directory: Path) -> str:
        """The section of the configuration that lets the program post here."""
        return f"""
allow_networks = ["127.0.0.0/8"]
ports = [{self.port}]
ca_file = "{directory / "hooks-ca.pem"}"
"""


@contextmanager
def hooks(directory: Path) -> Iterator[Hooks]:
    """A running receiver, whose authority's certificate is in the directory."""
    authority, received = trustme.CA(), Hooks()
    authority.cert_pem.write_to_path(directory / "hooks-ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(ADDRESS).configure_cert(context)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def setup(self) -> None:
            # Here, in the connection's own thread: a handshake that never ends delays no other.
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            super().finish()
            self.request.close()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            post = Post(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            received.posts.append(post)
            status, answer = received.answers.get(self.path, well)(post)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that is killed is what some tests are about

    with Server((ADDRESS, 0), Handler) as server:
        received.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()
