"""Faults of the machine under load, each at a moment that chance chooses: disk, descriptors, memory, clock, stops, DNS.

The real program takes mail from several clients when a fault begins. It may go on, refusing for now what it cannot do,
or end with 1 and one line that says why. SIGTERM during a fault ends it in order. After a restart without the fault,
every message that was acknowledged is delivered, the credits are those of the stored messages, and the database is
whole. No answer is a 500, and no traceback is logged.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest
import trio

from appliance.store import FILE_NAME
from tests import engines
from tests.e2e.delivery.world import delays, world
from tests.e2e.storms.failing_disk import SYNCS, WRITES, failing
from tests.e2e.storms.senders import LINE, Senders, waiting
from tests.e2e.storms.small_disk import MIB, mounted
from tests.e2e.submission.client import Raw
from tests.fakes.dns import Trouble
from tests.fakes.mx import FakeMx
from tests.running_appliance import Running, appliance
from tests.set_clock import CLOCK_FILE, set_clock
from tests.waiting import wait_until

Told = Callable[[str], None]

CREDIT = 1_000_000
ENDS_WITHIN = 20.0  # seconds for a fault to be met
DAY = 86_400
NOT_COPIED = "log cannot be copied into the database"  # nothing is lost by that
REFUSALS = ("503 ", "429 ", "507 ", "451 ", "452 ", "421 ", "454 ")  # to be retried


class Broken(Exception):
    """What does not hold."""


class Load(Senders):
    """Clients that send until they are told to stop, whatever becomes of the server."""

    @contextmanager
    def going(self, running: Running, *, web: int = 3, smtp: int = 1) -> Iterator[None]:
        ending = threading.Event()

        def again(work: Callable[[Running, threading.Event], None]) -> None:
            while not ending.is_set():
                with suppress(OSError, AssertionError):  # refused, reset, or closed in the middle
                    work(running, ending)
                ending.wait(0.02)

        works = [self._one_by_http] * web + [self._many_by_smtp] * smtp
        threads = [threading.Thread(target=again, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            for thread in threads:
                thread.join(60)

    def _one_by_http(self, running: Running, ending: threading.Event) -> None:
        self.post(running)

    def _many_by_smtp(self, running: Running, ending: threading.Event) -> None:
        head = "From: a@example.com\r\nTo: ada@example.net\r\nSubject: by SMTP\r\n\r\n"
        message = (head + LINE * (self.size // len(LINE))).encode()
        with Raw(running, "smtps") as client:
            client.log_in()
            while not ending.is_set():
                reply = client.transact(message).decode()
                if reply.startswith("250 2.0.0 queued as "):
                    self.acknowledged.append(reply.split()[-1])
                else:
                    self.refused += [reply[:9]] if reply else []  # none: the connection was lost
                    return


def _check_end(running: Running, code: int) -> str:
    """It ended by itself: with 1, and a line that says why."""
    lines = running.log_lines()
    last = json.loads(lines[-1]) if lines else {}
    if code != 1 or last.get("level") not in ("error", "critical") or not (last.get("reason") or last.get("event")):
        raise Broken(f"it ended with {code}, saying {last}")
    return f"ended: {last['event']}"


def _check_afterwards(running: Running, load: Load) -> None:
    if not running.is_alive():
        running.start()
    with suppress(OSError):
        load.accepted_again_within(running)
    wait_until(lambda: not waiting(running))
    engines.check(running.data_dir)
    stored: dict[str, str] = dict(engines.rows(running.data_dir, "SELECT id, status FROM messages"))
    if lost := [message for message in load.acknowledged if stored.get(message) != "delivered"]:
        raise Broken(f"{len(lost)} of {len(load.acknowledged)} acknowledged: {[(m, stored.get(m)) for m in lost[:3]]}")
    ((credit,),) = engines.rows(running.data_dir, "SELECT credits FROM accounts")
    if credit != CREDIT - len(stored):
        raise Broken(f"{len(stored)} messages and {CREDIT - credit} credits")
    if strange := [each for each in load.refused if not each.startswith(REFUSALS)]:
        raise Broken(f"answered {sorted(set(strange))[:5]}")
    if (code := running.terminate()) != 0:
        raise Broken(f"SIGTERM ended it with {code} afterwards")
    if traced := [line for line in running.complaints() if "Traceback" in line or "traceback" in line]:
        raise Broken(f"logged {traced[0][:1_500]}")


def _stopped(running: Running, during: str) -> str:
    """SIGTERM during a fault; an end by the fault itself at the same moment is one, too."""
    code = _terminate(running, during)
    if code == 0:
        return "survived"
    try:
        return _check_end(running, code)
    except Broken as broken:
        raise Broken(f"SIGTERM during {during}: {broken}") from None


def _terminate(running: Running, during: str) -> int:
    try:
        return running.terminate()
    except subprocess.TimeoutExpired:
        raise Broken(f"SIGTERM during {during} does not end it") from None


def _until(condition: Callable[[], bool], within: float = ENDS_WITHIN) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# ---- the disk


def _disk_error(calls: str, checkpoint: bool) -> Callable[[Path, Random], str]:
    def fault(directory: Path, chance: Random) -> str:
        load = Load(size=200_000 if checkpoint else 1_000)
        with appliance(directory, credit=CREDIT) as running:
            load.accepted_again_within(running)
            file = running.data_dir / (FILE_NAME if checkpoint else f"{FILE_NAME}-wal")
            when = chance.randint(1, 3 if checkpoint else 60)
            with failing(running, calls, "EIO", f"{when}+", only=file), load.going(running):
                if not _until(
                    lambda: not running.is_alive() or any(NOT_COPIED in line for line in running.complaints())
                ):
                    raise Broken("nothing is said of I/O errors")
                ended = not running.is_alive()
                outcome = _check_end(running, running.wait()) if ended else _stopped(running, "I/O errors")
            _check_afterwards(running, load)
        return outcome

    return fault


def disk_full(directory: Path, chance: Random) -> str:
    """No room, then room again; half of the time it is stopped and started without room."""
    load = Load()
    with mounted(directory / "data") as disk, appliance(directory, credit=CREDIT) as running:
        with load.going(running):
            _until(lambda: len(load.acknowledged) >= 5)
            time.sleep(chance.random())
            disk.fill()
            refused = len(load.refused)
            if not _until(lambda: len(load.refused) > refused + 5):
                raise Broken("with a full disk nothing is refused")
            if stop := chance.random() < 0.5:
                _stopped(running, "a full disk")
            else:
                disk.make_room()
                taken = len(load.acknowledged)
                if not _until(lambda: len(load.acknowledged) > taken):
                    raise Broken("with room again nothing is accepted")
        if stop:
            disk.make_room()
        _check_afterwards(running, load)
    return "survived"


# ---- descriptors and memory


def descriptors(directory: Path, chance: Random) -> str:
    """As many as are open and a few more, and a flood of connections."""
    load = Load(size=1_000)
    with appliance(directory, credit=CREDIT) as running, ExitStack() as stack:
        load.accepted_again_within(running)
        open_now = len(os.listdir(f"/proc/{running.pid}/fd"))
        most = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)[1]
        with load.going(running):
            _until(lambda: len(load.acknowledged) >= 5)
            resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (open_now + chance.randint(0, 8), most))
            for _ in range(60):
                with suppress(OSError):
                    parts = urlsplit(running.url)
                    stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=1))
            time.sleep(1 + chance.random())
            if not running.is_alive():
                outcome = _check_end(running, running.wait())
            elif chance.random() < 0.5:
                outcome = _stopped(running, "descriptors run out")
            else:
                resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (most, most))
                stack.close()
                taken, outcome = len(load.acknowledged), "survived"
                if not _until(lambda: len(load.acknowledged) > taken):
                    raise Broken("with descriptors again nothing is accepted")
        _check_afterwards(running, load)
    return outcome


def memory(directory: Path, chance: Random) -> str:
    """So much address space as it has and a little more, and messages that are larger.

    An allocation may fail anywhere in the interpreter and its libraries, so that a crash, which the
    service manager tells, is counted and shown, and no fault; what was acknowledged has to be there all the same.
    """
    load = Load(size=1_000)
    with appliance(directory, server='shutdown_timeout = "10s"', credit=CREDIT, fresh=True) as running:
        load.accepted_again_within(running)
        load.size = chance.choice((2, 5, 9)) * MIB
        status = Path(f"/proc/{running.pid}/status").read_text()
        size = int(status.split("VmSize:")[1].split()[0]) * 1024
        _, most = resource.prlimit(running.pid, resource.RLIMIT_AS)
        resource.prlimit(running.pid, resource.RLIMIT_AS, (size + chance.randint(8, 60) * MIB, most))
        with load.going(running, web=6, smtp=2):
            _until(lambda: not running.is_alive(), 3 + 3 * chance.random())
            if running.is_alive() and chance.random() < 0.5:
                resource.prlimit(running.pid, resource.RLIMIT_AS, (most, most))
                taken = len(load.acknowledged)
                if not _until(lambda: len(load.acknowledged) > taken or not running.is_alive()):
                    raise Broken("with memory again nothing is accepted")
                outcome = "survived" if running.is_alive() else _end_without_memory(running)
            else:
                outcome = _end_without_memory(running)
        load.size = 1_000
        _check_afterwards(running, load)
    return outcome


def _end_without_memory(running: Running) -> str:
    code = _terminate(running, "a want of memory") if running.is_alive() else running.wait()
    if code == 0:
        return "survived"
    return "crashed in native code" if code < 0 else _check_end(running, code)


# ---- time


def clock(directory: Path, chance: Random) -> str:
    load, file = Load(size=1_000), directory / "clock"
    set_clock(file, 0)
    with appliance(directory, credit=CREDIT, environment={CLOCK_FILE: str(file)}) as running:
        with load.going(running):
            for _ in range(6):
                taken = len(load.acknowledged)
                set_clock(file, int(chance.uniform(-5, 5) * DAY))
                if not _until(lambda taken=taken: len(load.acknowledged) > taken + 2):  # type: ignore[misc]
                    raise Broken("after the clock was set nothing is accepted")
                time.sleep(0.5 * chance.random())
        outcome = _stopped(running, "a wrong clock") if chance.random() < 0.5 else "survived"
        set_clock(file, 0)
        _check_afterwards(running, load)
    return outcome


def stops(directory: Path, chance: Random) -> str:
    load = Load(size=1_000)
    with appliance(directory, credit=CREDIT) as running:
        with load.going(running):
            for _ in range(3):
                _until(lambda: len(load.acknowledged) >= 3)
                time.sleep(0.3 * chance.random())
                os.kill(running.pid, signal.SIGSTOP)
                time.sleep(chance.choice((0.1, 1.0, 3.0)))
                os.kill(running.pid, signal.SIGCONT)
            os.kill(running.pid, signal.SIGSTOP)
            os.kill(running.pid, signal.SIGTERM)
            time.sleep(chance.random())
            os.kill(running.pid, signal.SIGCONT)
            if (code := running.wait()) != 0:
                raise Broken(f"SIGTERM while it was stopped ended it with {code}")
        _check_afterwards(running, load)
    return "survived"


# ---- names


def names(directory: Path, chance: Random) -> str:
    """A resolver that is dead, slow or lies: mail waits, none is given up, and is delivered once it is well."""
    return trio.run(_names, directory, chance)


async def _names(directory: Path, chance: Random) -> str:
    troubles = [
        Trouble.SERVFAIL,
        Trouble.REFUSED,
        Trouble.SILENCE,
        Trouble.GARBAGE,
        Trouble.CONTRADICTION,
        Trouble.CUT_TCP,
    ]
    server = FakeMx()
    async with world(directory, delays(*["1s"] * 30)) as made:
        await made.host("mx.test", server.serve)
        for number in range(4):
            made.publish(f"d{number}.test", MX=["10 mx.test."])
        sent = [await made.send("ada@d0.test")]
        for trouble in chance.sample(troubles, 3):
            made.dns.outage = trouble
            sent += [await made.send(f"u{len(sent)}@d{number}.test") for number in range(4)]
            await trio.sleep(chance.random())
        found = {each.status for message in sent for each in made.recipients(message).values()}
        if not found <= {"queued", "deferred", "delivered"}:
            raise Broken(f"without DNS mail is {found}")
        if chance.random() < 0.5:
            if (code := await made.terminate()) != 0:
                raise Broken(f"SIGTERM without DNS ended it with {code}")
            await made.start()
        made.dns.outage = None
        await made.final(*sent)
        statuses = {made.status(message) for message in sent}
        if statuses != {"delivered"}:
            raise Broken(f"with DNS again mail is {statuses}")
        if len(server.messages) != len(sent):
            raise Broken(f"{len(sent)} messages arrived {len(server.messages)} times")
        if (code := await made.terminate()) != 0 or [line for line in made.running.complaints() if "Traceback" in line]:
            raise Broken(f"ended with {code}; {made.running.complaints()[-3:]}")
    return "survived"


FAULTS: dict[str, Callable[[Path, Random], str]] = {
    "a write fails": _disk_error(WRITES, checkpoint=False),
    "a sync fails": _disk_error(SYNCS, checkpoint=False),
    "a checkpoint's write fails": _disk_error(WRITES, checkpoint=True),
    "a checkpoint's sync fails": _disk_error(SYNCS, checkpoint=True),
    "the disk is full": disk_full,
    "no descriptors": descriptors,
    "no memory": memory,
    "the clock is set": clock,
    "stopped": stops,
    "no DNS": names,
}


def run(rounds: int, seed: int, told: Told, only: str = "") -> tuple[str, list[str]]:
    """So many rounds of each fault; what was done, and what does not hold."""
    done, wrong, left_out = Counter[str](), list[str](), set[str]()
    for number in range(rounds):
        for name, fault in FAULTS.items():
            if only not in name:
                continue
            told(f"{name}, round {number + 1} of {rounds}")
            with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as directory:
                try:
                    outcome = fault(Path(directory), Random(f"{seed} {number} {name}"))
                    told(f"{name}: {outcome}")
                    done[outcome.partition(":")[0]] += 1
                except pytest.skip.Exception as why:  # what it needs is not on this machine
                    left_out.add(f"{name} ({why})")
                except (Exception, AssertionError) as error:
                    log = Path(directory, "appliance.log")
                    last = log.read_text().splitlines()[-3:] if log.exists() else []
                    wrong.append(
                        f"{name}, seed {seed}, round {number}: {type(error).__name__}: {error}; log: {last}"[:3_000]
                    )
    missing = f"; left out: {', '.join(sorted(left_out))}" if left_out else ""
    return f"{', '.join(f'{count} {outcome}' for outcome, count in done.items())}{missing}", wrong
