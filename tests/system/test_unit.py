"""The unit: systemd accepts it and rates it well hardened, and the real program runs within it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import trio

from appliance.environment import Environment
from appliance.store import open_store
from appliance.system import service as plan
from appliance.system.service import Installation, Program
from tests.e2e.submission.client import final_status, submit
from tests.ports import free_port
from tests.postgresql_server import USER, postgresql
from tests.programs import find, needs
from tests.running_appliance import PROGRAM as THIS
from tests.running_appliance import Provisioned, Running, appliance, provision
from tests.system.denying import can_deny, denying_writable_code
from tests.system.system_calls import ARCHITECTURES, allowed_calls, calls_of, exists_on, filtered

ANALYZE = find("systemd")
EXPOSURE = 2.0  # less is better: the promise of the project's threat model
MESSAGE = {"from": "a@example.com", "to": "b@example.net", "subject": "x", "text": "x"}

SERVICES = sorted(path.name for path in (Path(plan.__file__).parent / "files").glob("*.service"))


def unit_file(directory: Path, name: str = "appliance.service", *, single_file: bool = False) -> Path:
    path, program = directory / name, Program(Path("/bin/true"), single_file=False)
    made = {"appliance.service": plan.unit, "appliance-backup.service": plan.backup_unit}[name]
    text = made(program, Installation())
    path.write_text(text.replace("NotifyAccess=main", "NotifyAccess=all") if single_file else text)
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, timeout=60, check=False)


@needs("systemd")
@pytest.mark.parametrize("name", SERVICES)
def test_systemd_accepts_the_units(tmp_path: Path, name: str) -> None:
    files = [unit_file(tmp_path, name)]
    if name == "appliance-backup.service":
        files.append(tmp_path / plan.BACKUP_TIMER)
        files[-1].write_text(plan.file(plan.BACKUP_TIMER))
    ran = analyze("verify", "--man=no", *map(str, files))
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@needs("systemd")
@pytest.mark.parametrize("single_file", [False, True])
@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_exposed(tmp_path: Path, name: str, single_file: bool) -> None:
    """`systemd-analyze security` finds an exposure below 2.0 for each unit, for the single binary too."""
    ran = analyze("security", "--offline=true", "--no-pager", str(unit_file(tmp_path, name, single_file=single_file)))
    found = re.search(rf"Overall exposure level for {re.escape(name)}: ([0-9.]+)", ran.stdout)
    assert found is not None, ran.stdout + ran.stderr
    assert float(found[1]) < EXPOSURE


# Where x86-64 keeps a call from before 2006 that arm64 never had, and arm64's for the same. Python and the C library
# choose by architecture, so the unit must allow both; "" is what the other has no need of.
COUNTERPARTS = {
    "access": "faccessat",
    "arch_prctl": "",
    "chmod": "fchmodat",
    "creat": "openat",
    "dup2": "dup3",
    "epoll_create": "epoll_create1",
    "epoll_wait": "epoll_pwait",
    "eventfd": "eventfd2",
    "fork": "clone",
    "getdents": "getdents64",
    "getpgrp": "getpgid",
    "link": "linkat",
    "lstat": "newfstatat",
    "mkdir": "mkdirat",
    "open": "openat",
    "pipe": "pipe2",
    "poll": "ppoll",
    "readlink": "readlinkat",
    "rename": "renameat",
    "rmdir": "unlinkat",
    "select": "pselect6",
    "stat": "newfstatat",
    "symlink": "symlinkat",
    "time": "clock_gettime",
    "unlink": "unlinkat",
    "vfork": "clone",
}


@needs("systemd")
def test_words_of_a_comment_are_no_calls() -> None:
    """A group's description is not taken for calls: `@raw-io`, which the unit forbids, is about \"port access\"."""
    assert "access" not in calls_of("@raw-io")
    assert "access" in calls_of("@file-system")


@needs("systemd")
@needs("seccomp")
def test_both_architectures_have_the_calls_they_need() -> None:
    old = set(COUNTERPARTS)
    new = {name for name in COUNTERPARTS.values() if name}
    assert {name for name in old if exists_on("aarch64", name) or not exists_on("x86_64", name)} == set()
    assert {name for name in new if not exists_on("aarch64", name) or not exists_on("x86_64", name)} == set()
    assert (old | new) - allowed_calls() == set()


@needs("systemd")
@needs("strace")
@needs("seccomp")
def test_the_program_keeps_to_its_system_calls(tmp_path: Path) -> None:
    """Started, used over HTTP and SMTP, reloaded and stopped, it makes no call and opens no socket that the unit
    forbids, and none that one architecture lacks without a counterpart that is allowed too.
    """
    trace = tmp_path / "trace"
    program = ("strace", "-f", "-qq", "-o", str(trace), *THIS)
    with appliance(tmp_path, program=program) as running:
        use(running)
        assert running.process is not None
        tracee = int(trace.read_text().split(maxsplit=1)[0])
        for number in (signal.SIGHUP, signal.SIGTERM):
            os.kill(tracee, number)
        assert running.process.wait(30) == 0
    lines = trace.read_text().splitlines()
    used = {found[1] for line in lines if (found := re.match(r"\d+ +([a-z0-9_]+)\(", line))}
    assert {"fdatasync", "sendto", "execve"} & used  # the trace is one of work
    as_root = {"fchown"} if os.geteuid() == 0 else set()  # SQLite's, and only root's
    assert used - allowed_calls() - as_root == set()
    only_here = {name for name in used if not all(exists_on(each, name) for each in ARCHITECTURES)}
    assert only_here - set(COUNTERPARTS) == set(), "name the other architecture's call, and see that it is allowed"
    families = {found[1] for line in lines if (found := re.search(r" socket\((AF_\w+)", line))}
    allowed = re.search(r"^RestrictAddressFamilies=(.*)$", plan.file("appliance.service"), re.MULTILINE)
    assert allowed is not None
    assert families <= {*allowed[1].split(), "AF_NETLINK"}, "getaddrinfo tries AF_NETLINK, and does without"


@needs("systemd")
@needs("seccomp")
def test_the_program_works_under_the_filter(tmp_path: Path) -> None:
    forbidden = subprocess.run(
        filtered(sys.executable, "-c", "import os; os.chroot('/')"), capture_output=True, text=True
    )
    assert "PermissionError" in forbidden.stderr  # the filter is in force, for root too
    with appliance(tmp_path, program=filtered(*THIS)) as running:
        use(running)
        assert running.hang_up("reloaded")["changed"] == []
        assert running.complaints() == []
        assert running.terminate() == 0


@needs("systemd")
@needs("seccomp")
@needs("postgresql")
@pytest.mark.parametrize("way", ["socket", "TCP"])
def test_a_postgresql_is_reached_under_the_filter(tmp_path: Path, way: str) -> None:
    words = {line for line in plan.file("appliance.service").splitlines() if line.startswith(("After", "RestrictAddr"))}
    assert {"After=postgresql.service", "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX"} <= words
    port = free_port()
    with postgresql(listen_addresses="127.0.0.1", port=str(port)) as cluster:
        url = f"{cluster.url()}&port={port}" if way == "socket" else f"postgresql://{USER}@127.0.0.1:{port}/{USER}"

        async def add() -> Provisioned:
            async with open_store(tmp_path / "data", Environment(), url=url, inline=True) as store:
                return await provision(store, "demo")

        store = f'[store]\nurl = "{url}"'
        with appliance(tmp_path, program=filtered(*THIS), retention=store, account=trio.run(add)) as running:
            use(running)
            assert running.complaints() == []
            assert running.terminate() == 0


@needs("systemd")
@needs("seccomp")
def test_reload_needs_nothing_but_a_shell(tmp_path: Path) -> None:
    """The unit's own command, under its filter and with no program to be found by name, makes the server reload."""
    found = re.search(r"^ExecReload=(/bin/sh .*)$", plan.file("appliance.service"), re.MULTILINE)
    assert found is not None
    command = shlex.split(found[1])
    assert command[0] == "/bin/sh"
    assert "/" not in command[-1]
    with appliance(tmp_path) as running:
        told = {"MAINPID": str(running.pid), "PATH": str(tmp_path)}
        subprocess.run(filtered(*command), env=told, check=True, timeout=30)
        running.await_event("reloaded")
        assert running.terminate() == 0


def test_reload_first_checks_the_settings(tmp_path: Path) -> None:
    """The unit's first command for a reload fails with a broken file, so that `systemctl reload` does."""
    first, second = re.findall(r"^ExecReload=(.*)$", plan.file("appliance.service"), re.MULTILINE)
    words = shlex.split(first.replace("/etc/appliance/config.toml", str(tmp_path / "config.toml")))[1:]
    assert "HUP" in second
    for text, code in (('[server]\nhostname = "mail.example.com"\n', 0), ("[server\n", 1)):
        (tmp_path / "config.toml").write_text(text)
        ran = subprocess.run([*THIS, *words], capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stderr.count("\n")) == (code, code), ran.stderr


@needs("systemd")
@needs("seccomp")
def test_the_backup_unit_makes_a_backup_and_drops_old_ones(tmp_path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", plan.file("appliance-backup.service"), re.MULTILINE)
    command = shlex.split(line.replace("\\\n", " ").replace("$$", "$").replace("%%", "%"))
    program, saved = tmp_path / "appliance", tmp_path / "backups"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(THIS)} "$@"\n')
    program.chmod(0o755)
    saved.mkdir()
    for name, days in {"2026-01-01T023000.tar": 40, "2026-02-01T023000.tar": 3, "mine.tar": 40}.items():
        (saved / name).touch()
        os.utime(saved / name, (time.time() - days * 86_400,) * 2)
    with appliance(tmp_path) as running:
        variables = {"APPLIANCE": str(program), "DIRECTORY": str(saved), "KEEP_DAYS": "14"}
        told = {**os.environ, **variables, "APPLIANCE_CONFIG": str(running.config_file)}
        ran = subprocess.run(filtered(*command), env=told, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        assert running.terminate() == 0
    (made,) = {path.name for path in saved.iterdir()} - {"2026-02-01T023000.tar", "mine.tar"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{6}\.tar", made)
    assert f"{made} is complete" in ran.stdout
    for word in ("APPLIANCE", "DIRECTORY", "KEEP_DAYS"):
        assert re.search(rf"^Environment=(.* )?{word}=", plan.file("appliance-backup.service"), re.MULTILINE)


def use(running: Running) -> None:
    with running.client(headers={**running.account.bearer, "Idempotency-Key": "one"}) as client:
        answer = client.post("/emails", json=MESSAGE)
    assert answer.status_code == 202
    for message_id in (answer.json()["id"], submit(running)):
        assert final_status(running, message_id) == "delivered"


@pytest.mark.skipif(not can_deny(), reason="this kernel has no PR_SET_MDWE")
def test_the_program_needs_no_memory_that_is_written_and_run(tmp_path: Path) -> None:
    with appliance(tmp_path, program=denying_writable_code(*THIS)) as running:
        assert httpx.get(f"{running.url}/healthz", trust_env=False).status_code == 200
        assert running.login()
        assert running.terminate() == 0
