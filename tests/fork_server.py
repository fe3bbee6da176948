"""The process that has read all the code, and forks the program whenever one is wanted.

Reading the code is most of what a start costs. This process does nothing else, so it has no threads and nothing open
that a fork could inherit. It runs as `python -P -m tests.fork_server DESCRIPTOR` (see tests/fork_client.py) until the
other end of that socket is closed.
"""

import codecs
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import appliance
from appliance.config import load
from appliance.store.sqlite.migrate import migrations
from tests.set_clock import CLOCK_FILE, use_clock
from tests.torture.dying import DIES_AT, die_at

LARGEST_ORDER = 1 << 20  # bytes: the words, and an environment
STDIN, STDOUT, STDERR, FIRST_OF_OURS = range(4)
SYSTEM_CONFIG = "SYSTEM_CONFIG"  # the variable
PRELUDE = "TESTS_PRELUDE"  # the variable: code that runs before the program


def read_all_the_code() -> None:
    """Import every module of the program, and let no later search for garbage copy what a fork shares."""
    for module in pkgutil.walk_packages(appliance.__path__, "appliance."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    migrations()  # reads files by modules of Python's that another user may not be able to load later
    for codec in ("unicode-escape", "raw-unicode-escape", "idna", "punycode", "latin-1", "ascii", "utf-16"):
        codecs.lookup(codec)  # likewise
    gc.collect()
    gc.freeze()


class Parent:
    """Who forks, and tells of each child its id and how it ended."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._children: dict[int, int] = {}  # what to tell the end of each to
        self._deaths, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the process that gave the orders ends first
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def serve(self) -> list[str] | None:
        """Fork as often as wanted; returns in each child, with its words, and with None once no more are wanted."""
        while True:
            ready, _, _ = select.select([self._orders.fileno(), self._deaths], [], [])
            if self._deaths in ready:
                os.read(self._deaths, 4_096)
                self._bury()
            if self._orders.fileno() in ready:
                text, descriptors, _, _ = socket.recv_fds(self._orders, LARGEST_ORDER, 4)
                if not text:
                    self._end()
                    return None
                order = json.loads(text)
                if self._fork(*descriptors):
                    return self._become(order, *descriptors)

    def _fork(self, told: int, *streams: int) -> bool:
        child = os.fork()
        if not child:
            return True
        for stream in streams:
            os.close(stream)
        self._children[child] = told
        self._tell(told, child)
        return False

    def _become(
        self, order: dict[str, Any], told: int, stdout: int, stderr: int, stdin: int | None = None
    ) -> list[str]:
        """Be as a process that was started for this: with its own descriptors, signals, directory and environment."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._orders.detach()
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, STDIN)
        os.dup2(stdout, STDOUT)
        os.dup2(stderr, STDERR)
        os.closerange(FIRST_OF_OURS, os.sysconf("SC_OPEN_MAX"))
        os.chdir(order["directory"])
        os.environ.clear()
        os.environ.update(order["environment"])
        time.tzset()
        if order["user"] is not None:
            os.setgroups([])
            os.setgid(order["user"])
            os.setuid(order["user"])
        words: list[str] = order["words"]
        return words

    def _bury(self) -> None:
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            told = self._children.pop(child)
            self._tell(told, os.waitstatus_to_exitcode(status))
            os.close(told)

    def _tell(self, told: int, number: int) -> None:
        try:
            os.write(told, b"%d\n" % number)
        except BrokenPipeError:
            return  # the client is gone

    def _end(self) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)


def main() -> None:
    """Serve; in a child, be `python -m appliance`, with its exit code and its way to end."""
    read_all_the_code()
    words = Parent(socket.socket(fileno=int(sys.argv[1]))).serve()
    if words is not None:
        if SYSTEM_CONFIG in os.environ:
            load.SYSTEM_FILE = Path(os.environ[SYSTEM_CONFIG])
        if CLOCK_FILE in os.environ:
            use_clock(Path(os.environ[CLOCK_FILE]))
        if DIES_AT in os.environ:
            die_at(os.environ[DIES_AT])
        exec(os.environ.pop(PRELUDE, ""), {})
        sys.argv[1:] = words
        runpy.run_module("appliance", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
