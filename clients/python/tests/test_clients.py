"""The clients of all kinds over real sockets: connections, time-outs, lost answers, TLS."""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
import trustme

from mail_appliance import (
    ApiError,
    AsyncClient,
    Attachment,
    Client,
    ConfigurationError,
    ConnectionFailed,
    NotFound,
    PayloadTooLarge,
    ServiceUnavailable,
    Unauthorized,
    WaitTimeout,
    socket_transport,
)

from .conftest import MakeClient, Received, Server, answer, close_quietly, hang, raw, reset, running_server, trickle

OK = json.dumps({"id": "msg_1"}).encode()


def test_send_get_and_wait(server: Server, make_client: MakeClient) -> None:
    """A message is sent and read back, over one connection."""
    mail = make_client(server.url)
    sent = mail.send(to=["ada@example.net", "bounce@example.net"], text="Grüße", attachments=[Attachment("a", b"\x00")])
    message = mail.wait(sent.id, timeout=5)
    assert (mail.get(sent.id).status, message.status) == ("partial", "partial")
    assert [recipient.status for recipient in message.recipients] == ["delivered", "bounced"]
    assert server.appliance.sent[0].attachment("a") == b"\x00"
    assert server.connections == 1
    first = server.requests[0]
    assert (first.method, first.target, first.headers["host"]) == ("POST", "/emails", f"127.0.0.1:{server.port}")
    assert first.headers["idempotency-key"] == sent.idempotency_key
    assert "content-length" not in server.requests[1].headers


def test_keys_are_made_once_and_differ(server: Server, make_client: MakeClient) -> None:
    """A retry has the key and the bytes of the first attempt; another send has another key."""
    mail = make_client(server.url)
    server.script += [reset, answer(503, b"", retry_after="0")]
    result = mail.send()
    other = mail.send()
    first, second, third, last = server.requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == result.idempotency_key
    assert first.body == second.body == third.body
    assert last.headers["idempotency-key"] == other.idempotency_key != result.idempotency_key
    assert result.idempotency_key.startswith("auto_")


@pytest.mark.parametrize(
    "fault", [close_quietly, reset, raw(b"HTTP/1.1 202 Acc", close=True), raw(b"nonsense\r\n\r\n")]
)
def test_a_lost_answer_is_asked_for_again(server: Server, make_client: MakeClient, fault: object) -> None:
    """The retry comes on a new connection and succeeds."""
    server.script.append(fault)  # type: ignore[arg-type]
    assert make_client(server.url).send().id == "msg_1"
    assert len(server.requests) == 2


def test_an_answer_that_is_cut_off_is_lost(server: Server, make_client: MakeClient) -> None:
    """Neither a body shorter than its length nor chunks without an end are taken for whole."""
    mail = make_client(server.url)
    short = b"HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n" + OK
    chunked = b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(OK), OK)
    server.script += [raw(short, close=True), raw(chunked, close=True)]
    assert mail.send(subject="third time").id == "msg_1"
    assert len(server.requests) == 3


def test_every_form_of_answer_is_read(server: Server, make_client: MakeClient) -> None:
    """With a length, in chunks, until the connection's end, after an interim answer, by HTTP/1.0."""
    mail = make_client(server.url)
    head = b"HTTP/1.1 202 Accepted\r\nIdempotent-Replayed: true\r\n"
    server.script += [
        raw(
            head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (OK[:5], len(OK) - 5, OK[5:])
        ),
        raw(b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(OK) + OK),
        raw(head + b"\r\n" + OK, close=True),
        raw(head.replace(b"1.1", b"1.0") + b"\r\n" + OK, close=True),
    ]
    assert all(mail.send().replayed for _ in range(4))
    assert server.connections == 2


def test_a_connection_is_kept_after_an_error(server: Server, make_client: MakeClient) -> None:
    """An error answer that was read whole leaves the connection as it was."""
    mail = make_client(server.url)
    for _ in range(3):
        with pytest.raises(NotFound):
            mail.get("msg_x")
    mail.send()
    assert server.connections == 1


def test_connections_that_the_server_wants_closed_are_not_kept(server: Server, make_client: MakeClient) -> None:
    """`Connection: close` is obeyed."""
    mail = make_client(server.url, retries=0)
    server.script.append(answer(202, OK, connection="close"))
    assert [mail.send().id for _ in range(2)] == ["msg_1", "msg_1"]
    assert server.connections == 2


def test_what_comes_unasked_is_not_an_answer(server: Server, make_client: MakeClient) -> None:
    """A second answer to a request is not taken for the one to the next."""
    mail = make_client(server.url, retries=0)
    both = b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%s" % (len(OK), OK)
    other = both.replace(b"msg_1", b"msg_2")
    server.script.append(raw(both + other))
    assert [mail.send().id for _ in range(2)] == ["msg_1", "msg_1"]


def test_a_kept_connection_that_the_server_has_closed_is_not_used(server: Server, make_client: MakeClient) -> None:
    """Even without retries the next send succeeds, once the end has arrived here."""
    mail = make_client(server.url, retries=0)

    def answer_then_close(server: Server, sock: socket.socket, received: Received) -> None:
        answer(202, OK)(server, sock, received)
        close_quietly(server, sock, received)

    server.script.append(answer_then_close)
    mail.send()
    time.sleep(0.2)
    mail.send()
    assert server.connections == 2


def test_an_idle_connection_is_not_kept_for_long(
    server: Server, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a middlebox may have forgotten would only time out."""
    mail = make_client(server.url)
    mail.send()
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + socket_transport.KEPT_SECONDS + 1)
    mail.send()
    assert server.connections == 2


@pytest.mark.parametrize("slow", [hang, trickle])
def test_the_whole_answer_has_one_deadline(server: Server, make_client: MakeClient, slow: object) -> None:
    """However slowly it arrives: a byte now and then does not prolong it."""
    server.script.append(slow)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"timed out after 0\.4 s") as caught:
        make_client(server.url, timeout=0.4, retries=0).send()
    assert 0.3 < time.monotonic() - began < 20
    assert caught.value.idempotency_key is not None


def test_a_server_that_does_not_read_ends_with_the_deadline(server: Server, make_client: MakeClient) -> None:
    """Sending counts as well."""
    server.early.append(hang)
    with pytest.raises(ConnectionFailed, match="timed out after 1 s"):
        make_client(server.url, timeout=1, retries=0).send(attachments=[Attachment("a", bytes(8_000_000))])


def test_connecting_has_a_time_of_its_own(make_client: MakeClient) -> None:
    """A listener whose queue is full answers no handshake."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = []
        for _ in range(4):
            other = socket.socket()
            other.setblocking(False)
            other.connect_ex(full.getsockname())
            others.append(other)
        try:
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            with pytest.raises(ConnectionFailed, match=r"no connection within 0\.3 s"):
                make_client(url, connect_timeout=0.3, retries=0).send()
        finally:
            for other in others:
                other.close()


def test_no_connection_at_all(make_client: MakeClient) -> None:
    """A refused connection is retried and then raised, with its cause."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        mail = make_client(f"http://127.0.0.1:{unused.getsockname()[1]}", retries=1)
        with pytest.raises(ConnectionFailed, match="no answer from http://127") as caught:
            mail.send(idempotency_key="mine")
    assert caught.value.idempotency_key == "mine"
    assert caught.value.__cause__ is not None


def test_a_large_body_that_is_refused_early(server: Server, make_client: MakeClient) -> None:
    """The answer is read although the server closes before it has read all."""

    def refuse(server: Server, sock: socket.socket, received: Received) -> None:
        error = {"error": "Too large.", "code": "payload_too_large", "request_id": "req_1"}
        answer(413, error, connection="close")(server, sock, received)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1_000_000) and not server.stopped.wait(0.001):
            pass

    server.early.append(refuse)
    with pytest.raises(PayloadTooLarge):
        make_client(server.url, retries=0).send(attachments=[Attachment("a", bytes(10_000_000))])


def test_a_large_message_arrives_whole(server: Server, make_client: MakeClient) -> None:
    """And the connection is kept."""
    content = os.urandom(5_000_000)
    mail = make_client(server.url)
    mail.send(attachments=[Attachment("a", content)])
    mail.send()
    assert server.appliance.sent[0].attachment("a") == content
    assert server.connections == 1


def test_of_a_huge_answer_only_a_part_is_read(server: Server, make_client: MakeClient) -> None:
    """16 MiB of an answer without an end, which then is no result; the next send is on another connection."""

    def endless(server: Server, sock: socket.socket, _: Received) -> None:
        sock.sendall(b"HTTP/1.1 202 Accepted\r\n\r\n")
        while not server.stopped.is_set():
            sock.sendall(bytes(1_000_000))

    mail = make_client(server.url, retries=0)
    server.script.append(endless)
    with pytest.raises(ApiError) as caught:
        mail.send()
    assert (caught.value.status, caught.value.code) == (202, None)
    assert mail.send().id == "msg_1"


def test_redirects_are_not_followed(server: Server, make_client: MakeClient) -> None:
    """The credentials stay where they were given for."""
    server.script.append(answer(307, b"", location=f"{server.url}/elsewhere"))
    with pytest.raises(ApiError) as caught:
        make_client(server.url).send()
    assert caught.value.status == 307
    assert len(server.requests) == 1


def test_errors_have_what_the_answer_said(server: Server, make_client: MakeClient) -> None:
    """From the body and the headers, after the last retry."""
    server.script.append(answer(401, {"error": "No.", "code": "unauthorized"}, x_request_id="req_5"))
    server.script += [answer(503, {"error": "Wait.", "code": "service_unavailable"}, retry_after="0")] * 2
    mail = make_client(server.url, retries=1)
    with pytest.raises(Unauthorized) as caught:
        mail.send()
    assert (caught.value.message, caught.value.request_id) == ("No.", "req_5")
    with pytest.raises(ServiceUnavailable) as again:
        mail.send()
    assert again.value.retry_after == 0
    assert len(server.requests) == 3


def test_waiting_ends_in_time(server: Server, make_client: MakeClient) -> None:
    """Also when the appliance does not answer any more."""
    mail = make_client(server.url)
    server.script += [answer(200, {"id": "m", "status": "queued"}), hang]
    with pytest.raises(WaitTimeout) as caught:
        mail.wait("m", timeout=1.2)
    assert caught.value.last_message is not None
    assert caught.value.last_message.status == "queued"


def test_a_client_is_shared(server: Server, make_client: MakeClient) -> None:
    """Sends at the same time have each their own answer, and connections are reused."""
    mail = make_client(server.url)
    with ThreadPoolExecutor(16) as threads:
        subjects = list(threads.map(lambda number: mail.send(subject=str(number)).subject, range(100)))
    assert subjects == [str(number) for number in range(100)]
    assert len({sent.idempotency_key for sent in server.appliance.sent}) == 100
    assert server.connections <= 16


def test_a_closed_client_is_not_used(server: Server, make_client: MakeClient) -> None:
    """It says so."""
    mail = make_client(server.url)
    mail.send()
    mail.close()
    with pytest.raises(ConfigurationError, match="closed"):
        mail.send()


# ---- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A private certificate authority."""
    return trustme.CA()


@pytest.fixture
def tls_server(authority: trustme.CA) -> Iterator[Server]:
    """A server with a certificate of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with running_server(context) as running:
        yield running


def test_tls_with_a_private_authority(authority: trustme.CA, tls_server: Server, make_client: MakeClient) -> None:
    """With a context that trusts it, connections are kept as without TLS, and large bodies arrive."""
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    mail = make_client(tls_server.url, ssl_context=trusting)
    mail.send()
    mail.send(attachments=[Attachment("a", bytes(2_000_000))])
    assert mail.get("msg_2").id == "msg_2"
    assert tls_server.connections == 1


def test_a_certificate_that_does_not_verify_is_not_retried(tls_server: Server, make_client: MakeClient) -> None:
    """Nothing is sent."""
    with pytest.raises(ConnectionFailed, match="certificate does not verify"):
        make_client(tls_server.url).send()
    assert tls_server.connections == 1
    assert tls_server.requests == []


def test_a_handshake_that_does_not_end(server: Server, make_client: MakeClient) -> None:
    """It is part of connecting."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=r"no connection within 0\.3 s"):
            make_client(url, connect_timeout=0.3, retries=0).send()


# ---- of one kind


def test_context_manager_and_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments, everything comes from the environment."""
    monkeypatch.setenv("MAIL_APPLIANCE_URL", server.url)
    monkeypatch.setenv("MAIL_APPLIANCE_TOKEN", "t")
    with Client() as mail:
        mail.send(from_="a@example.com", to="b@example.net", subject="s", text="t")
    assert server.requests[0].headers["authorization"] == "Bearer t"

    async def main() -> str:
        async with AsyncClient() as mail:
            return (await mail.send(from_="a@example.com", to="b@example.net", subject="s", text="t")).id

    assert anyio.run(main) == anyio.run(main, backend="trio")[:4] + "2"


@pytest.mark.parametrize("attachments", [5, ["text"], [Attachment("a", "text" * 20_000)]])  # type: ignore[arg-type]
def test_attachments_of_a_wrong_type(server: Server, make_client: MakeClient, attachments: object) -> None:
    """They are the caller's mistake, in a worker thread as elsewhere."""
    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        make_client(server.url).send(attachments=attachments)
    assert server.requests == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_send_leaves_no_connection(server: Server, backend: str) -> None:
    """What it waited for must not be the answer of the next one."""

    async def main() -> str:
        async with AsyncClient(server.url, token="t") as mail:
            server.script.append(hang)
            with anyio.move_on_after(0.3) as scope:
                await mail.get("msg_1")
            assert scope.cancelled_caught
            return (await mail.send(from_="a@example.com", to="b@example.net", subject="s", text="t")).id

    assert anyio.run(main, backend=backend) == "msg_1"
    assert server.connections == 2


def test_a_forked_process_makes_its_own_connections(server: Server) -> None:
    """The kept ones are the parent's."""
    program = """
import os, sys
from mail_appliance import Client
mail = Client(sys.argv[1], token="t")
def send(key):
    return mail.send(from_="a@example.com", to="b@example.net", subject=key, text="t", idempotency_key=key)
send("parent")
child = os.fork()
if child == 0:
    os._exit(0 if send("child").subject == "child" else 1)
_, status = os.waitpid(child, 0)
assert status == 0
assert send("parent again").subject == "parent again"
mail.close()
"""
    path = str(Path(__file__).parents[1] / "src")
    subprocess.run([sys.executable, "-c", program, server.url], check=True, env={**os.environ, "PYTHONPATH": path})
    assert server.connections == 2
