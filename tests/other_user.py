"""Runs `python -m tests.other_user USER appliance WORDS…` as root: the program as that user, whatever it can read.

Python itself may lie where only root can read it, so all code is imported before the privileges are dropped. The
settings that the program finds in /etc are those of $SYSTEM_CONFIG.
"""

import os
import pwd
import runpy
import sys
from pathlib import Path

from appliance.config import load
from appliance.store.sqlite.migrate import migrations
from tests.fork_server import read_all_the_code


def main() -> None:
    """Become the user, then the program."""
    user, program, *words = sys.argv[1:]
    assert program == "appliance"
    read_all_the_code()
    migrations()  # which reads files by a part of the library that is imported only then
    load.SYSTEM_FILE = Path(os.environ["SYSTEM_CONFIG"])
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    sys.argv[1:] = words
    runpy.run_module("appliance", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
