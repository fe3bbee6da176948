"""The real program, started and killed again and again."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.running_appliance import Running


@contextmanager
def often_started(running: Running) -> Iterator[Running]:
    """An appliance that must not run now, and does not at the end."""
    assert not running.is_alive()
    try:
        yield running
    finally:
        running.kill()
