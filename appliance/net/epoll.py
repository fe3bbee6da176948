"""In charge of waiting until a socket can be read, for less than Trio takes for it.

Trio tells the system before every wait which socket it is for, and takes that back afterwards. Here each socket is made
known once, in an epoll of our own that tells of edges, and a single task waits for that epoll through Trio's.

An edge is news: something came that was not there before. Whoever has read all there was waits for the next one; who
has not must read on first, for there will be none. That less came than was asked for tells that it was all, but for
TCP's urgent bytes: a read ends before one, whatever is behind it.
"""

import select
from contextlib import suppress

import outcome
import trio

_EDGES = select.EPOLLIN | select.EPOLLPRI | select.EPOLLRDHUP | select.EPOLLET
_OVER = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_MOST = 256  # edges heard at once; the others are still there the next time


class Readable:
    """One socket, for one task at a time. To be closed before the socket is."""

    __slots__ = ("_ear", "_news", "_task", "fd", "over", "urgent")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.over = False  # the other side has closed: what is left can be read without a wait, and there is no more
        self.urgent = False  # there was an urgent byte: from then on a short read tells nothing
        self._news = False  # something came while nobody waited
        self._task: trio.lowlevel.Task | None = None
        self._ear = _this_run_s_ear()
        self._ear.add(self)

    async def wait(self) -> None:
        """Return once something may have come since the last time."""
        if self._news:
            await trio.lowlevel.checkpoint()
            self._news = False  # not before: who is cancelled there has read nothing
            return
        if self._task is not None:
            raise trio.BusyResourceError("another task is already reading from this socket")
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def hear(self, events: int) -> None:
        """An edge."""
        if events & _OVER:
            self.over = True
        if events & select.EPOLLPRI:
            self.urgent = True
        if self._task is None:
            self._news = True
        else:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    def close(self) -> None:
        """Hear of it no more; who waits is told that it is closed."""
        self._ear.remove(self)
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task, outcome.Error(trio.ClosedResourceError("this socket was closed")))


class _Ear:
    """The epoll, and whose each of its sockets is."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sockets: dict[int, Readable] = {}

    def add(self, readable: Readable) -> None:
        self._epoll.register(readable.fd, _EDGES)
        self._sockets[readable.fd] = readable

    def remove(self, readable: Readable) -> None:
        if self._sockets.get(readable.fd) is readable:
            del self._sockets[readable.fd]
            with suppress(OSError, ValueError):  # the socket, or at the end the epoll, may be closed by now
                self._epoll.unregister(readable.fd)

    async def listen(self) -> None:
        """Wake whoever waits, for as long as Trio runs."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, events in self._epoll.poll(0, _MOST):
                    if (readable := self._sockets.get(fd)) is not None:
                        readable.hear(events)


_ear: trio.lowlevel.RunVar[_Ear] = trio.lowlevel.RunVar("ear")


def _this_run_s_ear() -> _Ear:
    try:
        return _ear.get()
    except LookupError:
        ear = _Ear()
        _ear.set(ear)
        trio.lowlevel.spawn_system_task(ear.listen, name="readable")
        return ear
