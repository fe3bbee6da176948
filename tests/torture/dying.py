"""Lets a forked program die at a point, as by `kill -9`: the product has nothing for this, its functions are wrapped.

The environment names the point and which arrival there is the last. `steps` are all changes that a command makes to
files and databases, one by one; how many there were is written to a file, if that is named.
"""

import os
import signal
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

DIES_AT = "TESTS_DIES_AT"  # in the environment: the name of a point, a colon, a number
STEPS_FILE = "TESTS_STEPS_FILE"  # likewise

STEPS = "steps"
FILE_CALLS = ("rename", "replace", "link", "unlink", "mkdir", "rmdir", "fsync", "fdatasync", "chmod")
READING = ("SELECT", "PRAGMA", "EXPLAIN", "WITH")  # statements that are no steps

Counts = Callable[..., bool]  # whether a call is an arrival


class _Point(NamedTuple):
    module: str
    name: str
    counts: Counts
    after: bool = False


def _commits(work: str) -> Counts:
    return lambda _, jobs: any(getattr(job.work, "__qualname__", "") == work for job in jobs)


def _accepted_by_server(_: object, result: Any, **__: object) -> bool:
    return any(each.status == "delivered" for each in getattr(result, "outcomes", ()))


def _accepted_by_receiver(_: object, result: Any, **__: object) -> bool:
    return getattr(result, "status", "") == "success"


_COMMIT = "appliance.store.sqlite.engine", "commit"
_RESULT = "appliance.concurrency.wake", "BatchWriter.add"
POINTS = {
    "before an accepted message is committed": _Point(*_COMMIT, _commits("Messages._accept")),
    "after an accepted message is committed": _Point(*_COMMIT, _commits("Messages._accept"), after=True),
    "after the remote's 250": _Point(*_RESULT, _accepted_by_server),
    "before a result is committed": _Point(*_COMMIT, _commits("Queue._record")),
    "after a result is committed": _Point(*_COMMIT, _commits("Queue._record"), after=True),
    "after the receiver's 2xx": _Point(*_RESULT, _accepted_by_receiver),
    "before a post is committed": _Point(*_COMMIT, _commits("_record")),
    "after a post is committed": _Point(*_COMMIT, _commits("_record"), after=True),
}


def die_at(text: str) -> None:
    name, _, number = text.rpartition(":")
    left = int(number)
    file = Path(os.environ[STEPS_FILE]) if STEPS_FILE in os.environ else None

    def arrive() -> None:
        nonlocal left
        left -= 1
        if file is not None:
            file.write_text(str(int(number) - left))
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if name == STEPS:
        for call in FILE_CALLS:
            _wrap(os, call, arrive, lambda *_, **__: True)
        connection = import_module("appliance.store.sqlite.connection").Connection
        _wrap(connection, "execute", arrive, lambda _, sql, *__: not sql.lstrip().startswith(READING))
    else:
        point = POINTS[name]
        *outer, inner = point.name.split(".")
        owner: Any = import_module(point.module)
        for each in outer:
            owner = getattr(owner, each)
        _wrap(owner, inner, arrive, point.counts, after=point.after)


def _wrap(owner: Any, name: str, arrive: Callable[[], None], counts: Counts, *, after: bool = False) -> None:
    wrapped = getattr(owner, name)

    @wraps(wrapped, assigned=("__name__",), updated=())
    def wrapper(*arguments: Any, **options: Any) -> Any:
        is_there = counts(*arguments, **options)
        if is_there and not after:
            arrive()
        result = wrapped(*arguments, **options)
        if is_there and after:
            arrive()
        return result

    setattr(owner, name, wrapper)
