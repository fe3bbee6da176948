"""SMTP clients for a running appliance: one that keeps the rules, and one that may break every one of them."""

import base64
import smtplib
import socket
import ssl
from contextlib import ExitStack
from types import TracebackType
from urllib.parse import urlsplit

from appliance.tls.certificate import CERTIFICATE
from tests import engines
from tests.running_appliance import Running
from tests.waiting import wait_until

MESSAGE = b"From: Shop <shop@example.com>\r\nTo: ada@example.net\r\nSubject: On its way\r\n\r\nHello, Ada.\r\n"


def endpoint(running: Running, scheme: str = "smtp") -> tuple[str, int]:
    """Where it listens; `smtp` is STARTTLS, `smtps` TLS from the first byte; `inbound` is for feedback."""
    urls = running.inbound if scheme == "inbound" else running.smtp
    parts = urlsplit(next(url for url in urls if scheme == "inbound" or url.startswith(f"{scheme}:")))
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def trusting(running: Running) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(running.data_dir / CERTIFICATE))


def smtp(running: Running, *, login: bool = True) -> smtplib.SMTP:
    client = smtplib.SMTP(*endpoint(running), local_hostname="client.example.com", timeout=20)
    client.starttls(context=trusting(running))
    if login:
        client.login(running.account.username, running.account.password)
    return client


def submit(running: Running) -> str:
    """Submit one message by STARTTLS and AUTH; the id that its reply names."""
    with smtp(running) as client:
        client.mail("shop@example.com")
        client.rcpt("ada@example.net")
        code, words = client.data(MESSAGE)
    assert (code, words[:20]) == (250, b"2.0.0 queued as msg_"), (code, words)
    return words.split()[-1].decode()


def final_status(running: Running, message_id: str) -> str:
    """What becomes of a message, by `GET /emails/{id}`, within some seconds."""
    with running.client() as client:

        def status() -> str:
            return str(client.get(f"/emails/{message_id}").json()["status"])

        wait_until(lambda: status() not in ("queued", "processing"), why=status)
        return status()


def smtps(running: Running) -> smtplib.SMTP_SSL:
    address, port = endpoint(running, "smtps")
    client = smtplib.SMTP_SSL(address, port, local_hostname="client.example.com", timeout=20, context=trusting(running))
    client.login(running.account.username, running.account.password)
    return client


def plain(running: Running) -> bytes:
    return base64.b64encode(f"\0{running.account.username}\0{running.account.password}".encode())


class Raw:
    """One connection; bytes out, replies in. Every wait ends after `timeout` seconds."""

    def __init__(
        self, running: Running, scheme: str = "smtp", *, source: str = "", timeout: float = 20, greeted: bool = True
    ) -> None:
        self._running = running
        with ExitStack() as stack:
            self.socket = stack.enter_context(socket.socket())
            self.socket.settimeout(timeout)
            if source:
                self.socket.bind((source, 0))
            self.socket.connect(endpoint(running, scheme))
            if scheme == "smtps":
                wrapped = trusting(running).wrap_socket(self.socket, server_hostname="127.0.0.1")
                self.socket = stack.enter_context(wrapped)
            self._unread = b""
            if greeted:
                assert self.reply().startswith(b"220 ")
            stack.pop_all()

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> bytes:
        """The next reply, all its lines; b"" when the other side has closed."""
        reply = b""
        while True:
            while b"\r\n" not in self._unread:
                try:
                    data = self.socket.recv(65_536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    assert not self._unread
                    return reply
                self._unread += data
            line, _, self._unread = self._unread.partition(b"\r\n")
            reply += line + b"\r\n"
            if line[3:4] != b"-":
                return reply

    def say(self, line: bytes) -> bytes:
        self.send(line + b"\r\n")
        return self.reply()

    def rest(self) -> list[bytes]:
        found = []
        while reply := self.reply():
            found.append(reply)
        return found

    def start_tls(self) -> None:
        assert self.say(b"STARTTLS").startswith(b"220 ")
        self.socket = trusting(self._running).wrap_socket(self.socket, server_hostname="127.0.0.1")

    def log_in(self) -> "Raw":
        assert self.say(b"EHLO client.example.com").startswith(b"250-")
        assert self.say(b"AUTH PLAIN " + plain(self._running)).startswith(b"235 2.7.0")
        return self

    def transact(self, message: bytes = MESSAGE, recipient: bytes = b"ada@example.net") -> bytes:
        """A whole transaction; the reply to its end, or to the first command that is refused."""
        for line in (b"MAIL FROM:<shop@example.com>", b"RCPT TO:<" + recipient + b">", b"DATA"):
            reply = self.say(line)
            if reply[:1] not in b"23":
                return reply
        self.send(message + b".\r\n")
        return self.reply()


def serves(running: Running, source: str = "127.0.0.9") -> None:
    with Raw(running, "smtps", source=source) as client:
        client.log_in()
        assert client.transact().startswith(b"250 2.0.0 queued as msg_")


def messages(running: Running) -> int:
    ((number,),) = engines.rows(running.data_dir, "SELECT count(*) FROM messages WHERE source = 'smtp'")
    return int(number)
