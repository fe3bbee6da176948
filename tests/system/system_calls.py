"""The unit's system call filter: which calls it allows, on which architecture a call exists, and the filter in force.

systemd compiles SystemCallFilter= with libseccomp; the same library is used here, so what a test runs under is what
systemd would load, with no systemd running.
"""

import ctypes
import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from ctypes.util import find_library

from appliance.system import service as plan

LIBRARY = find_library("seccomp")
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, as <linux/audit.h> numbers them
_PR_SET_NO_NEW_PRIVS = 38
_ERRNO = 0x00050000  # SCMP_ACT_ERRNO, the number in the lower bits
_ALLOW = 0x7FFF0000


def calls_of(group: str) -> set[str]:
    """The system calls of one of systemd's groups, with those of the groups inside it."""
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    found: set[str] = set()
    # Each line holds one name or a comment, whose words may be names of calls as well: `# Raw I/O port access`.
    for name in (line.strip() for line in shown.splitlines()):
        if name.startswith("@") and name != group:
            found |= calls_of(name)
        elif re.fullmatch(r"[a-z0-9_]+", name):
            found.add(name)
    return found


def allowed_calls() -> set[str]:
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", plan.file("appliance.service"), re.MULTILINE):
        for group in line.removeprefix("~").split():
            allowed = allowed - calls_of(group) if line.startswith("~") else allowed | calls_of(group)
    return allowed


def exists_on(architecture: str, call: str) -> bool:
    """Whether the architecture has this call; libseccomp gives those it lacks a negative number."""
    return int(_library().seccomp_syscall_resolve_name_arch(ARCHITECTURES[architecture], call.encode())) >= 0


def filtered(*program: str) -> tuple[str, ...]:
    """The command of a program that may make the unit's calls and no others, as systemd would start it."""
    return (sys.executable, __file__, ",".join(sorted(allowed_calls())), *program)


def load(allowed: Iterable[str]) -> None:
    """Let this process and its children make these calls only; all others fail with EPERM."""
    library = _library()
    rules = library.seccomp_init(_ERRNO | errno.EPERM)
    for name in allowed:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            assert library.seccomp_rule_add(rules, _ALLOW, number, 0) == 0, name
    assert ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert library.seccomp_load(rules) == 0


def _library() -> ctypes.CDLL:
    assert LIBRARY is not None
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    library.seccomp_syscall_resolve_name_arch.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    return library


if __name__ == "__main__":
    load(sys.argv[1].split(","))
    os.execv(sys.argv[2], sys.argv[2:])
