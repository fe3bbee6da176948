"""In charge of the bar that shows how far a long command is, on a terminal and nowhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Fraction = Callable[[float], None]  # how much is done, from 0 to 1


@contextmanager
def bar(what: str) -> Iterator[Fraction]:
    """A bar on stderr, gone when it is over; what is piped or logged sees nothing of it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)
