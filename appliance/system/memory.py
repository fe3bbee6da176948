"""Limits the memory of incoming messages to what the system allows this process, and sets up the C library's allocator.

The settings are the upper bound. If the process may use less (a limit on its address space, a control group, a small
machine), messages get less: a client then gets 503 or 451 and retries, whereas a process without memory can fail
anywhere.
"""

import ctypes
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from appliance.config.values import MIB

# Memory for everything but messages: composing one large message (five times its size), stacks and heaps of threads,
# SQLite's cache, deliveries. Address space is reserved in larger pieces than are used.
RESERVED_MEMORY = 128 * MIB
RESERVED_ADDRESSES = 160 * MIB
MIN_MESSAGE_MEMORY = 8 * MIB  # enough for one message at a time
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # mallopt(3)
MMAP_THRESHOLD = 256 * 1024  # bytes from which a block has its own mapping, which is unmapped when it is freed
MEMORY_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")  # bytes


class System(Struct, frozen=True):
    """The paths where Linux describes a process and its control groups; a parameter for tests."""

    process: Path = Path("/proc/self")
    groups: Path = Path("/sys/fs/cgroup")
    machine: int = os.sysconf("SC_PHYS_PAGES") * MEMORY_PAGE_BYTES


def for_messages(configured: int, system: System | None = None) -> int:
    """Return the bytes for messages over HTTP, and again over SMTP: `configured`, or half of the available memory."""
    available = min(_available(system or System()))
    return min(configured, max(MIN_MESSAGE_MEMORY, available // 2))


def set_up_malloc(*, one_arena: bool = False) -> None:
    """Make the C library return the memory of large messages: by default glibc keeps blocks of up to 32 MiB.

    Twenty messages of 10 MiB at once then take 190 MiB and return them, instead of 400 MiB and 200 for good.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):  # musl does not have or need it
        c_library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        if one_arena or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            # Each further arena reserves 64 MiB of addresses. One is enough: threads hold the GIL while they allocate.
            c_library.mallopt(M_ARENA_MAX, 1)


def return_freed() -> None:
    """Return freed pages to the system; takes about a millisecond.

    A full collection also empties Python's lists of free tuples, which keep up to 2,000 of each length.
    """
    gc.collect()
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "malloc_trim"):
        c_library.malloc_trim(0)


def _available(system: System) -> Iterator[int]:
    """Yield the bytes that each limit leaves for messages, which may be negative."""
    try:  # proc_pid_statm(5), in pages: address space, resident memory, …, data
        pages = [int(word) for word in (system.process / "statm").read_text().split()]
    except OSError:
        pages = [0] * 6
    resident = pages[1] * MEMORY_PAGE_BYTES
    for kind, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - used * MEMORY_PAGE_BYTES - RESERVED_ADDRESSES
    for limit in _group_limits(system):
        yield limit - resident - RESERVED_MEMORY
    yield system.machine * 3 // 4 - resident - RESERVED_MEMORY  # leaves some for the system


def _group_limits(system: System) -> Iterator[int]:
    """Yield the memory limits of the process's control group and its parents (cgroups(7)), versions 2 and 1."""
    try:
        lines = (system.process / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits_along(system.groups, path, "memory.max")
            yield from _limits_along(system.groups, path, "memory.high")
        elif "memory" in controllers.split(","):
            yield from _limits_along(system.groups / "memory", path, "memory.limit_in_bytes")


def _limits_along(group: Path, path: str, file: str) -> Iterator[int]:
    for part in ("", *Path(path.lstrip("/")).parts):
        group /= part
        try:
            text = (group / file).read_text().strip()
        except OSError:
            continue  # the root group has no such file
        if text.isdigit():  # not "max"
            yield int(text)
