"""What `appliance dev` takes: a second to start, a two-hundredth of a second of one core for a message, and 90 MB."""

import os
import smtplib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.dev.inbox import MESSAGES_KEPT
from tests.running_appliance import STOP_TIMEOUT
from tests.running_dev import Dev, environment, running_dev
from tests.stopwatch import Stopwatch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells how much a process takes"),
]

READY = 1.0  # seconds
MEMORY = 90e6  # bytes, at the peak
PER_MESSAGE = 1 / 200  # seconds of one core, delivered and indexed
SENT = MESSAGES_KEPT + 500
START = [sys.executable, "-m", "appliance", "dev", "--port", "0", "--smtp-port", "0", "--json"]
MAIL = "From: app@my.test\r\nTo: ada@example.net\r\nSubject: Number {}\r\n\r\n" + "Words of a message.\r\n" * 40


def started_in(directory: Path) -> float:
    process = subprocess.Popen(START, cwd=directory, env=environment(), stdout=subprocess.PIPE)
    watch = Stopwatch(process.pid)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline()
        taken = watch.taken
    process.terminate()
    assert process.wait(STOP_TIMEOUT) == 0
    return taken


def test_it_is_ready_within_a_second(tmp_path: Path) -> None:
    """The best of three: the first one compiles."""
    assert min(started_in(tmp_path) for _ in range(3)) < READY


def cpu_seconds(dev: Dev) -> float:
    fields = Path(f"/proc/{dev.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(dev: Dev) -> int:
    status = Path(f"/proc/{dev.process.pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


def count(dev: Dev, **filters: str) -> int:
    found = dev.http.get("/v1/emails/count", params=filters).json()
    total = int(found["count"])
    while found["next"]:
        found = dev.http.get("/v1/emails/count", params={**filters, "before": found["next"]}).json()
        total += int(found["count"])
    return total


def test_ten_thousand_messages_are_kept_in_little_memory(tmp_path: Path) -> None:
    """More arrive than are kept: the oldest go."""
    with running_dev(tmp_path) as dev:
        before = cpu_seconds(dev)
        with smtplib.SMTP("localhost", dev.smtp_port) as client:
            for number in range(SENT):
                client.sendmail("app@my.test", ["ada@example.net"], MAIL.format(number))
        while count(dev) > MESSAGES_KEPT or count(dev, waiting="true"):
            time.sleep(0.5)
        taken = (cpu_seconds(dev) - before) / SENT
        assert count(dev) == MESSAGES_KEPT
        assert dev.waited()["subject"] == f"Number {SENT - 1}"
        assert (taken < PER_MESSAGE, peak(dev) < MEMORY) == (True, True), (taken, peak(dev))
