"""SIGHUP: settings and certificates are read again, mail goes on, and what cannot be used changes nothing."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from tests.e2e.contract.service import at_once
from tests.running_appliance import Running, appliance


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with appliance(tmp_path) as started:
        yield started


def rewrite(running: Running, old: str, new: str) -> None:
    text = running.config_file.read_text()
    assert text.count(old) == 1, text
    running.config_file.write_text(text.replace(old, new))


def statuses(running: Running, count: int) -> list[int]:
    message = {"from": "a@example.com", "to": "b@example.net", "subject": "x", "text": "x"}
    with running.client() as client:
        return [
            client.post("/emails", json=message, headers={"Idempotency-Key": f"{time.monotonic_ns()}"}).status_code
            for _ in range(count)
        ]


def test_limits_change_live(running: Running) -> None:
    """A new request rate holds from the reload on, and the event names it."""
    assert set(statuses(running, 5)) == {202}
    rewrite(running, "requests_per_second = 0", "requests_per_second = 1")
    assert running.hang_up("reloaded")["changed"] == ["limits.requests_per_second"]
    assert 429 in at_once(lambda _: statuses(running, 1)[0], range(30))  # one after the other may be slow enough
    with running.client(headers=running.login()) as client:
        assert 429 in at_once(lambda _: client.delete("/v1/templates/none").status_code, range(30))
    assert running.complaints() == []


def test_low_disk_and_plain_logins_change_live(running: Running) -> None:
    """The watermark and the SMTP settings are taken over, too: each is seen from outside."""
    assert "AUTH" not in greeting(running)
    rewrite(running, 'min_free_disk = "0"', 'min_free_disk = "1000TiB"')
    rewrite(running, "[smtp]", "[smtp]\nallow_plaintext_auth = true")
    running.hang_up("reloaded")
    assert statuses(running, 1) == [503]
    assert "AUTH" in greeting(running)


def greeting(running: Running) -> str:
    host, _, port = running.smtp[0].removeprefix("smtp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.recv(1000)
        client.sendall(b"EHLO client.example.com\r\n")
        return client.recv(4000).decode()


def test_a_bad_file_changes_nothing(running: Running) -> None:
    """Whatever is wrong with it, one event says why, and the settings stay those it had."""
    for content in ("[http\n", "[http]\nbnd = 1\n", None):
        running.config_file.unlink()
        if content is not None:
            running.config_file.write_text(content)
        event = running.hang_up("reload failed; the current settings stay")
        assert event["level"] == "error"
        assert str(running.config_file) in event["reason"]
        assert statuses(running, 2) == [202, 202]


def certified(directory: Path, authority: trustme.CA, stem: str) -> str:
    """The settings of a new certificate for 127.0.0.1."""
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(directory / f"{stem}.key")
    (directory / f"{stem}.pem").write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return f'tls_cert = "{directory / stem}.pem"\ntls_key = "{directory / stem}.key"'


def shown(running: Running, authority: trustme.CA) -> bytes:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    url = httpx.URL(running.url)
    with (
        socket.create_connection((url.host, url.port or 443), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        found = tls.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_certificates_are_read_again_at_once(tmp_path: Path) -> None:
    """Another file in the settings is shown with the next handshake; one that cannot be used is not."""
    authority = trustme.CA()
    first, second = certified(tmp_path, authority, "first"), certified(tmp_path, authority, "second")
    with appliance(tmp_path, http=first) as running:
        before = shown(running, authority)
        rewrite(running, first, second)
        assert running.hang_up("reloaded")["changed"] == ["http.tls_cert", "http.tls_key"]
        after = shown(running, authority)
        assert after != before
        (tmp_path / "second.key").write_text("not a key")
        running.hang_up("reload failed; the current settings stay")
        assert shown(running, authority) == after


def test_the_log_level_changes_live(running: Running) -> None:
    """At `error` the plain course of things is not written any more, and at `info` it is again."""
    assert running.process is not None
    rewrite(running, "[server]", '[server]\nlog_level = "error"')
    begin = running.log_file.stat().st_size
    running.process.send_signal(signal.SIGHUP)
    time.sleep(1)
    rewrite(running, '"error"', '"info"')
    assert running.hang_up("reloaded")["changed"] == ["server.log_level"]
    assert running.log_file.read_bytes()[begin:].count(b"\n") == 1


def test_a_reload_during_a_stop_does_not_kill(running: Running) -> None:
    """SIGHUP and a second SIGTERM while it ends change nothing about its clean end."""
    assert running.process is not None
    host = httpx.URL(running.url)
    with socket.create_connection((host.host, host.port or 80), timeout=10) as slow:
        slow.sendall(b"POST /emails HTTP/1.1\r\nHost: x\r\n")  # a request that is not finished holds the stop up
        time.sleep(0.2)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            running.process.send_signal(number)
            time.sleep(0.1)
        slow.close()
    assert running.process.wait(30) == 0


def test_without_a_file_it_is_the_terminals_end(tmp_path: Path) -> None:
    """A first look that was started in a terminal ends with it, in order."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    code = (
        "import appliance.config.load as c; c.EMBEDDED['http']['bind'] = ['127.0.0.1:0'];"
        "c.EMBEDDED['smtp']['bind'] = ['127.0.0.1:0']; from appliance.cli import main; main(['serve'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        assert b'"ready"' in process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 0
