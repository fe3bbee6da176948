"""What MemoryDenyWriteExecute= does on a new kernel, for a program that no systemd starts."""

import ctypes
import sys

PR_SET_MDWE, PR_GET_MDWE, REFUSE_EXEC_GAIN = 65, 66, 1  # prctl(2)


def can_deny() -> bool:
    return bool(ctypes.CDLL(None).prctl(PR_GET_MDWE, 0, 0, 0, 0) >= 0)


def denying_writable_code(*program: str) -> tuple[str, ...]:
    """The command of a program that gets no memory which is both written and run."""
    code = (
        "import ctypes, os, sys;"
        f"assert ctypes.CDLL(None).prctl({PR_SET_MDWE}, {REFUSE_EXEC_GAIN}, 0, 0, 0) == 0;"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return (sys.executable, "-c", code, *program)
