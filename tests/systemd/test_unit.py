"""In charge of the unit: systemd accepts it, finds it well hardened, and the real program lives within it."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from appliance.systemd import plan
from appliance.systemd.plan import Program, Wishes
from tests.running import PROGRAM as THIS
from tests.running import appliance
from tests.systemd.denying import can_deny, denying_writable_code

ANALYZE = shutil.which("systemd-analyze")
EXPOSURE = 2.0  # less is better: the promise of the project's threat model
MESSAGE = {"from": "a@example.com", "to": "b@example.net", "subject": "x", "text": "x"}

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is needed: apt-get install systemd")


def unit_file(directory: Path, *, single_file: bool) -> Path:
    """The unit as it is installed, for a program that exists."""
    path = directory / "appliance.service"
    text = plan.unit(Program(Path("/bin/true"), single_file=False), Wishes())
    path.write_text(text.replace("NotifyAccess=main", "NotifyAccess=all") if single_file else text)
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask systemd itself."""
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """It is read without one complaint."""
    ran = analyze("verify", str(unit_file(tmp_path, single_file=False)))
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("single_file", [False, True])
def test_the_service_is_hardly_exposed(tmp_path: Path, single_file: bool) -> None:
    """`systemd-analyze security` finds an exposure below 2.0, for the single binary too."""
    ran = analyze("security", "--offline=true", "--no-pager", str(unit_file(tmp_path, single_file=single_file)))
    found = re.search(r"Overall exposure level for appliance\.service: ([0-9.]+)", ran.stdout)
    assert found is not None, ran.stdout + ran.stderr
    assert float(found[1]) < EXPOSURE


def calls_of(group: str) -> set[str]:
    """The system calls of one of systemd's groups, with those of the groups inside it."""
    found = set()
    for word in analyze("syscall-filter", group).stdout.split():
        if word.startswith("@"):
            found |= calls_of(word) if word != group else set()
        elif re.fullmatch(r"[a-z0-9_]+", word):
            found.add(word)
    return found


def allowed_calls() -> set[str]:
    """What the unit lets through."""
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", plan.file("appliance.service"), re.MULTILINE):
        groups = line.removeprefix("~").split()
        for group in groups:
            allowed = allowed - calls_of(group) if line.startswith("~") else allowed | calls_of(group)
    return allowed


@needs_systemd
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is needed: apt-get install strace")
def test_the_program_keeps_to_its_system_calls(tmp_path: Path) -> None:
    """Started, used over HTTP, reloaded and stopped, it makes no call and opens no socket that the unit forbids."""
    trace = tmp_path / "trace"
    program = ("strace", "-f", "-qq", "-o", str(trace), *THIS)
    with appliance(tmp_path, program=program) as running:
        with running.client(headers={**running.account.bearer, "Idempotency-Key": "one"}) as client:
            answer = client.post("/emails", json=MESSAGE)
        assert answer.status_code == 202
        assert running.process is not None
        tracee = int(trace.read_text().split(maxsplit=1)[0])
        for number in (signal.SIGHUP, signal.SIGTERM):
            subprocess.run(["kill", f"-{number.value}", str(tracee)], check=True)
        assert running.process.wait(30) == 0
    lines = trace.read_text().splitlines()
    used = {found[1] for line in lines if (found := re.match(r"\d+ +([a-z0-9_]+)\(", line))}
    assert {"fdatasync", "sendto", "execve"} & used  # the trace is one of work
    as_root = {"fchown"} if os.geteuid() == 0 else set()  # SQLite's, and only root's
    assert used <= allowed_calls() | {"execve"} | as_root
    families = {found[1] for line in lines if (found := re.search(r" socket\((AF_\w+)", line))}
    allowed = re.search(r"^RestrictAddressFamilies=(.*)$", plan.file("appliance.service"), re.MULTILINE)
    assert allowed is not None
    assert families <= {*allowed[1].split(), "AF_NETLINK"}, "getaddrinfo tries AF_NETLINK, and does without"


@pytest.mark.skipif(not can_deny(), reason="this kernel has no PR_SET_MDWE")
def test_the_program_needs_no_memory_that_is_written_and_run(tmp_path: Path) -> None:
    """With MemoryDenyWriteExecute, as the kernel does it, it starts and takes mail."""
    with appliance(tmp_path, program=denying_writable_code(*THIS)) as running:
        assert httpx.get(f"{running.url}/healthz", trust_env=False).status_code == 200
        assert running.login()
        assert running.terminate() == 0
