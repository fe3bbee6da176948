"""`appliance dev` in a process of its own, on free ports."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.fork_client import ROOT
from tests.running_appliance import NO_TLS, STOP_TIMEOUT

WITHOUT = ("APPLIANCE_CONFIG", "NOTIFY_SOCKET")


@dataclass(frozen=True)
class Dev:
    url: str
    smtp_port: int
    http: httpx.Client
    process: "subprocess.Popen[str]"

    def waited(self, **query: str) -> dict[str, object]:
        """The newest message that matches, as soon as there is one."""
        (message,) = self.http.get("/v1/emails", params={"wait": "60s", "limit": "1", **query}).json()["emails"]
        return dict(message)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in WITHOUT}
    return {**kept, "PYTHONPATH": str(ROOT)}


@contextmanager
def running_dev(directory: Path, *options: str) -> Iterator[Dev]:
    """Start the program in `directory`, and stop it at the end: it must exit in order."""
    command = [sys.executable, "-m", "appliance", "dev", "--port", "0", "--smtp-port", "0", "--json", *options]
    process = subprocess.Popen(command, cwd=directory, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        addresses = json.loads(process.stdout.readline())
        with httpx.Client(base_url=addresses["url"], verify=NO_TLS, timeout=120, trust_env=False) as http:
            yield Dev(addresses["url"], addresses["smtp_port"], http, process)
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(STOP_TIMEOUT)
        process.stdout.close()
    assert status == 0
