"""What messages on their way in may take: what the settings say, or what the tightest limit of the system leaves."""

import resource
from pathlib import Path

import pytest

from appliance.config.values import MIB
from appliance.system.memory import (
    MEMORY_PAGE_BYTES,
    MIN_MESSAGE_MEMORY,
    RESERVED_ADDRESSES,
    RESERVED_MEMORY,
    System,
    for_messages,
)

WANTED = 256 * MIB
USED = 100 * MIB  # resident, of a process in these tests


def system(directory: Path, group: str = "0::/\n", machine: int = 64_000 * MIB) -> System:
    process, groups = directory / "self", directory / "cgroup"
    process.mkdir()
    groups.mkdir()
    (process / "statm").write_text(
        f"{3 * USED // MEMORY_PAGE_BYTES} {USED // MEMORY_PAGE_BYTES} 0 0 0 {2 * USED // MEMORY_PAGE_BYTES} 0\n"
    )
    (process / "cgroup").write_text(group)
    return System(process, groups, machine)


def limit(made: System, group: str, file: str, told: str) -> None:
    directory = made.groups / group
    directory.mkdir(parents=True, exist_ok=True)
    (directory / file).write_text(f"{told}\n")


def test_a_large_machine_gives_what_the_settings_want(tmp_path: Path) -> None:
    made = system(tmp_path)
    assert for_messages(WANTED, made) == WANTED
    assert for_messages(8 * WANTED, made) == 8 * WANTED


def test_a_small_machine_gives_less(tmp_path: Path) -> None:
    made = system(tmp_path, machine=512 * MIB)
    assert for_messages(WANTED, made) == (384 * MIB - USED - RESERVED_MEMORY) // 2


@pytest.mark.parametrize(
    ("own", "file", "inside"),
    [
        ("0::/system.slice/mail.service\n", "memory.max", "system.slice/mail.service"),
        ("0::/system.slice/mail.service\n", "memory.high", "system.slice/mail.service"),
        ("0::/system.slice/mail.service\n", "memory.max", "system.slice"),
        ("0::/\n", "memory.max", ""),
        ("5:cpu,memory:/docker/abc\n0::/\n", "memory.limit_in_bytes", "memory/docker/abc"),
        ("5:memory:/docker/abc\n0::/\n", "memory.limit_in_bytes", "memory"),
    ],
)
def test_a_control_group_gives_less(tmp_path: Path, own: str, file: str, inside: str) -> None:
    made = system(tmp_path, own)
    limit(made, inside, file, str(450 * MIB))
    assert for_messages(WANTED, made) == (450 * MIB - USED - RESERVED_MEMORY) // 2


def test_the_tightest_limit_counts_and_what_is_none_does_not(tmp_path: Path) -> None:
    """`max` is no limit, and of several the smallest decides; a little is always there."""
    made = system(tmp_path, "0::/a/b\n")
    limit(made, "a/b", "memory.max", "max")
    assert for_messages(WANTED, made) == WANTED
    limit(made, "a", "memory.max", str(500 * MIB))
    limit(made, "a/b", "memory.max", str(400 * MIB))
    assert for_messages(WANTED, made) == (400 * MIB - USED - RESERVED_MEMORY) // 2
    limit(made, "a/b", "memory.max", str(100 * MIB))
    assert for_messages(WANTED, made) == MIN_MESSAGE_MEMORY


@pytest.mark.parametrize(("kind", "used"), [(resource.RLIMIT_AS, 3 * USED), (resource.RLIMIT_DATA, 2 * USED)])
def test_a_limit_of_the_process_gives_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, used: int
) -> None:
    made = system(tmp_path)
    monkeypatch.setattr(
        resource, "getrlimit", lambda asked: (700 * MIB if asked == kind else resource.RLIM_INFINITY, 0)
    )
    assert for_messages(WANTED, made) == (700 * MIB - used - RESERVED_ADDRESSES) // 2


def test_a_system_that_tells_nothing_gives_what_is_wanted(tmp_path: Path) -> None:
    assert for_messages(WANTED, System(tmp_path / "none", tmp_path / "none", 4_000 * MIB)) == WANTED
    assert for_messages(WANTED) <= WANTED
