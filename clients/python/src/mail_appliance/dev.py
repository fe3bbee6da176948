"""`appliance dev` for tests end to end: starts it on free ports, waits for messages, and stops it.

In `conftest.py`, `pytest_plugins = ["mail_appliance.pytest_plugin"]` makes it the fixture `appliance`.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from mail_appliance.client import Client

COMMAND = "APPLIANCE_COMMAND"  # environment variable with another program, such as `sh packaging/run`
_STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class ReceivedEmail:
    """A message in the inbox. `text` or `html` is None if the message has no such part."""

    id: str
    sender: str
    subject: str
    recipients: tuple[str, ...]
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]


class DevAppliance:
    """A running `appliance dev`; a context manager that stops it. Messages are in memory."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """Start it and wait until it listens. The program is `command`, `$APPLIANCE_COMMAND` or `appliance`."""
        program = list(command or shlex.split(os.environ.get(COMMAND, "appliance")))
        words = [*program, "dev", "--port", "0", "--smtp-port", "0", "--json"]
        hidden = ("APPLIANCE_CONFIG", "NOTIFY_SOCKET")
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        self._process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE)  # noqa: S603 - the caller's program
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError(f"{shlex.join(words)} did not start; its error is above")
        addresses = json.loads(line)
        self.url: str = addresses["url"]
        self.smtp_host: str = addresses["smtp_host"]
        self.smtp_port: int = addresses["smtp_port"]
        self._open = build_opener(ProxyHandler({})).open

    def client(self) -> Client:
        """A client that sends to it."""
        return Client(self.url, token="dev")  # noqa: S106 (any token is accepted)

    def wait(self, *, to: str = "", subject: str = "", timeout: int = 10) -> ReceivedEmail:
        """The newest message to this address or domain, with this part of its subject; TimeoutError if none comes."""
        filters = {"to": to, "subject": subject}
        query = {name: value for name, value in filters.items() if value} | {"wait": f"{timeout}s", "limit": "1"}
        emails = self._call("GET", f"/v1/emails?{urlencode(query)}")["emails"]
        if not emails:
            raise TimeoutError(f"no message with {filters} within {timeout} s")
        (email,) = emails
        body = self._call("GET", f"/v1/emails/{email['id']}/body")
        recipients = tuple(recipient["email"] for recipient in email["recipients"])
        headers = tuple((header["name"], header["value"]) for header in body["headers"])
        return ReceivedEmail(
            email["id"], email["from"], email["subject"], recipients, body["text"], body["html"], headers
        )

    def clear(self) -> None:
        """Delete all messages."""
        self._call("DELETE", "/v1/emails")

    def stop(self) -> None:
        """Stop the server."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        finally:
            self._process.communicate()  # also closes the pipe

    def __enter__(self) -> "DevAppliance":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _call(self, method: str, path: str) -> Any:
        with self._open(Request(self.url + path, method=method), timeout=120) as answer:  # noqa: S310 - our own URL
            return json.load(answer)
