"""What each stage of a message costs of the interpreter lock, by samples of who holds it (py-spy).

A sample counts for the innermost frame that belongs to a stage. What belongs to none is the event loop itself, the
interpreter's libraries, and chores that no message asks for.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.bench.deliver import Sink, measure
from tests.running_appliance import Running

SAMPLES = 500  # a second
SETTLING = 1.0  # seconds until py-spy has read the program's symbols
ENDING = 30.0  # seconds that it may take to write what it saw

STAGES = (
    ("log", re.compile(r"appliance/telemetry/")),
    ("sign", re.compile(r"appliance/(?:keys/|deliver/preparing|message/dkim)|cryptography/")),
    ("record", re.compile(r"record\w* \(appliance/store/|appliance/deliver/outcome")),
    ("store", re.compile(r"accept\w* \(appliance/store/|appliance/store/")),
    ("post", re.compile(r"appliance/webhook/")),
    ("deliver", re.compile(r"appliance/(?:deliver|dns)/")),
    ("accept", re.compile(r"appliance/(?:web|intake|message|submission)/")),
)
OTHER = "other"


def stage_of(stack: str) -> str:
    """The stage that a stack of frames, outermost first and with `;` between them, is at work for."""
    for frame in reversed(stack.split(";")):
        for name, pattern in STAGES:
            if pattern.search(frame):
                return name
    return OTHER


def sampling(pid: int, written: Path) -> list[str]:
    """The command that writes who holds the lock, until it is interrupted."""
    spy = str(Path(sys.executable).with_name("py-spy"))
    options = ["--gil", "--rate", f"{SAMPLES}", "--format", "raw", "--duration", "unlimited"]
    return [spy, "record", *options, "--output", str(written), "--pid", f"{pid}"]


class NotSampled(Exception):
    """py-spy may not look into the program here, or is missing; the text is what it says."""


def costs(
    running: Running,
    there: Sink,
    send: Callable[[int], float],
    messages: int,
    after: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Microseconds of the interpreter lock for each message, by stage; `after` waits for what follows the arrivals.

    Raises NotSampled.
    """
    assert running.process is not None
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "samples"
        command = sampling(running.process.pid, written)
        try:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        except OSError as error:
            raise NotSampled(f"py-spy: {error.strerror}") from error
        with process:
            time.sleep(SETTLING)
            measure(there, send, messages)
            after()
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=ENDING)
        if not written.exists():
            raise NotSampled(f"py-spy: {' '.join(told.split())[:200]}")
        seen: Counter[str] = Counter()
        for line in written.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            seen[stage_of(stack)] += int(count)
    order = [*(name for name, _ in reversed(STAGES)), OTHER]
    return {name: seen[name] / SAMPLES / messages * 1e6 for name in order}
