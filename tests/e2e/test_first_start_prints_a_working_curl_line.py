"""A first look, as the README promises it: start in an empty directory, paste, and see the message delivered."""

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from appliance.config.load import SYSTEM_FILE
from tests.ports import free_port
from tests.programs import needs

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:8080"  # of the built-in settings; a test cannot choose another


def port_is_free() -> bool:
    """Whether the built-in settings can have their port on this machine, now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 8080))
        except OSError:
            return False
    return True


pytestmark = [
    pytest.mark.skipif(not port_is_free(), reason="port 8080 is in use on this machine"),
    pytest.mark.skipif(SYSTEM_FILE.exists(), reason="this machine has a configuration file"),
    needs("curl"),
]


@contextmanager
def served(directory: Path, *options: str) -> Iterator[str]:
    """`appliance serve` in that directory, without any configuration; what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "APPLIANCE_CONFIG"}
    output, log = directory / "stdout", directory / "stderr"
    with output.open("w") as stdout, log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "appliance", "serve", *options],
            cwd=directory,
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdout=stdout,
            stderr=stderr,
        )
    try:
        deadline = time.monotonic() + 60
        while not output.read_text().endswith("\n") and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None, log.read_text()
        yield output.read_text()
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def pasted(line: str) -> Any:
    shown = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=20)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def value(text: str, label: str) -> str:
    found = re.search(rf"^  {label} {{2,}}(.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_pasted_lines_send_and_show_a_message(tmp_path: Path) -> None:
    """The printed curl line is accepted, again and again; the second shows it delivered; no secret is in the log."""
    with served(tmp_path) as text:
        send, poll = [line for line in text.splitlines() if line.startswith("curl ")]
        first, second = pasted(send), pasted(send)
        assert first["status"] == "queued"
        assert first["id"] != second["id"]
        deadline = time.monotonic() + 60
        message = {"status": "queued"}
        while message["status"] == "queued" and time.monotonic() < deadline:
            message = pasted(poll.replace("/ID ", f"/{first['id']} "))
        assert message["status"] == "delivered"
        check_the_other_credentials(text)
    log = (tmp_path / "stderr").read_text()
    assert '"event": "ready"' in log
    for label in ("Password", "SMTP password", "API key"):
        assert value(text, label) not in log


def check_the_other_credentials(text: str) -> None:
    """Login and SMTP credential work as printed, too; the URL shows the dashboard. No webhook goes to this machine."""
    login = {"email": value(text, "Login"), "password": value(text, "Password")}
    token = httpx.post(f"{URL}/v1/auth/login", json=login, trust_env=False).json()["token"]
    local, headers = {"url": "http://localhost:3000/hook"}, {"Authorization": f"Bearer {token}"}
    assert httpx.put(f"{URL}/v1/webhook", json=local, headers=headers, trust_env=False).status_code == 400
    page = httpx.get(URL, trust_env=False, follow_redirects=True)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    basic = (value(text, "SMTP username"), value(text, "SMTP password"))
    assert httpx.get(f"{URL}/emails/msg_none", auth=basic, trust_env=False).status_code == 404


class Hook(http.server.BaseHTTPRequestHandler):
    seen: ClassVar[list[Message]] = []

    def do_POST(self) -> None:
        """Answer 200."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.headers)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def test_beside_a_settings_file_everything_can_be_tried(tmp_path: Path) -> None:
    """`--sandbox` passes over it, on its own ports; the user is an administrator; a webhook goes to a local server."""
    (tmp_path / "config.toml").write_text('[server]\nhostname = "mail.example.com"\ndata_dir = "real"\n')
    port, smtp_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    with receiver, served(tmp_path, "--sandbox", "--port", str(port), "--smtp-port", str(smtp_port)) as text:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        assert value(text, "URL") == url
        assert value(text, "SMTP server") == f"127.0.0.1:{smtp_port} (STARTTLS)"
        assert (tmp_path / "appliance-data").is_dir()
        assert not (tmp_path / "real").exists()
        login = {"email": value(text, "Login"), "password": value(text, "Password")}
        token = httpx.post(f"{url}/v1/auth/login", json=login, trust_env=False).json()["token"]
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as user:
            assert user.get("/v1/admin/accounts").status_code == 200
            hook = f"http://localhost:{receiver.server_port}/hook?a=b"
            assert user.put("/v1/webhook", json={"url": "http://example.com/hook"}).status_code == 400
            assert user.put("/v1/webhook", json={"url": hook}).status_code == 200
            assert user.post("/v1/webhook/ping").status_code == 202
            deadline = time.monotonic() + 60
            while not Hook.seen and time.monotonic() < deadline:
                time.sleep(0.05)
        receiver.shutdown()
    (headers,) = Hook.seen
    assert headers["Host"] == f"localhost:{receiver.server_port}"
    assert headers["Service-Signature"].startswith("t=")
