"""One address after the other is dialled, until one accepts."""

import errno
from ipaddress import ip_address

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from appliance.net.dial import dial_first
from appliance.system.shortage import Shortage

ADDRESSES = (ip_address("2001:db8::1"), ip_address("192.0.2.1"), ip_address("192.0.2.2"))


class Network:
    """Accepts, refuses or ignores connections."""

    def __init__(self, *answers: OSError | float | None) -> None:
        self.dialled: list[tuple[str, float]] = []
        self.answers = list(answers)  # to each dial in turn: an error, seconds of silence, or a connection at once

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        """As `Outside.dial`."""
        assert port == 443
        self.dialled.append((address, trio.current_time()))
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        await trio.sleep(answer or 0)
        return memory_stream_pair()[0]


def refused() -> OSError:
    """What a closed port says."""
    return OSError(errno.ECONNREFUSED, "Connection refused")


async def test_the_first_that_accepts_is_taken(autojump_clock: MockClock) -> None:
    """A refusal leads to the next address at once, silence after the patience is over; the others are not dialled."""
    network = Network(refused(), 100.0, None)
    address, _ = await dial_first(network.dial, ADDRESSES, 443, patience=2.0)
    assert str(address) == "192.0.2.2"
    assert network.dialled == [("2001:db8::1", 0.0), ("192.0.2.1", 0.0), ("192.0.2.2", 2.0)]
    early = Network(1.0)
    assert (await dial_first(early.dial, ADDRESSES, 443, patience=2.0))[0] == ADDRESSES[0]


async def test_the_last_one_is_waited_for_and_its_error_is_raised(autojump_clock: MockClock) -> None:
    """How long the last may take is the caller's own limit."""
    slow = Network(100.0)
    assert (await dial_first(slow.dial, ADDRESSES[:1], 443, patience=2.0))[0] == ADDRESSES[0]
    last = OSError(errno.EHOSTUNREACH, "No route to host")
    with pytest.raises(OSError, match="No route to host"):
        await dial_first(Network(refused(), refused(), last).dial, ADDRESSES, 443, patience=2.0)


@pytest.mark.parametrize("before", [0, 2])
async def test_a_shortage_of_this_machine_ends_it(autojump_clock: MockClock, before: int) -> None:
    """Where there is no descriptor for one address, there is none for the next; the fault is not the host's."""
    network = Network(*[refused()] * before, OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(Shortage):
        await dial_first(network.dial, ADDRESSES, 443, patience=2.0)
    assert len(network.dialled) == before + 1
