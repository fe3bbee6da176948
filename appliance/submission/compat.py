"""Imports trio-asyncio on every supported Python. Other modules import it from here.

trio-asyncio 0.16.0 derives classes from two names of asyncio that Python 3.14 removed: the base class of event-loop
policies, which asyncio keeps under a private name, and the base class of child watchers. The appliance uses neither: it
passes its loop explicitly and starts no process through asyncio. This module adds the missing names to asyncio for the
duration of the import and then removes them, so that no other library finds them.

Delete this module once trio-asyncio can be imported on Python 3.14 without it.
"""

import asyncio
import asyncio.events
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["open_loop"]


@contextmanager
def _removed_names() -> Iterator[None]:
    replacements = (
        (asyncio.events, "BaseDefaultEventLoopPolicy", getattr(asyncio.events, "_BaseDefaultEventLoopPolicy", object)),
        (asyncio, "AbstractChildWatcher", object),
    )
    missing = [(module, name, base) for module, name, base in replacements if not hasattr(module, name)]
    for module, name, base in missing:
        setattr(module, name, base)
    try:
        yield
    finally:
        for module, name, _ in missing:
            delattr(module, name)


with _removed_names():
    from trio_asyncio import open_loop
