"""Addresses are dialled in turn; what counts as a lack of this machine, and what as a fault of the other side."""

import errno
from ipaddress import ip_address

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from appliance.net.dial import SHORTAGE_ERRNOS, Shortage, dial_first, raise_if_short, shortage_in

ADDRESSES = (ip_address("2001:db8::1"), ip_address("192.0.2.1"), ip_address("192.0.2.2"))


class Network:
    """Accepts, refuses or ignores connections."""

    def __init__(self, *answers: OSError | float | None) -> None:
        self.dialled: list[tuple[str, float]] = []
        self.answers = list(answers)  # to each dial in turn: an error, seconds of silence, or a connection at once

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        """As `Environment.dial`."""
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


@pytest.mark.parametrize("lack", sorted(SHORTAGE_ERRNOS))
def test_a_lack_is_found_behind_other_errors(lack: int) -> None:
    """Whatever a library made of it: another exception, or a group of them."""
    system = OSError(lack, "words")
    wrapped = OSError("all attempts to connect failed")
    wrapped.__cause__ = ExceptionGroup("several", [ConnectionRefusedError(errno.ECONNREFUSED, "no"), system])
    for error in (system, wrapped):
        assert shortage_in(error) == "words"
        with pytest.raises(Shortage, match="words"):
            raise_if_short(error)


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EACCES, None])
def test_other_errors_are_the_other_side_s(code: int | None) -> None:
    """A server that refuses, or cannot be reached, is no lack of this machine."""
    error = OSError("words") if code is None else OSError(code, "words")
    assert shortage_in(error, "192.0.2.1") is None
    raise_if_short(error)


def test_no_address_is_a_lack_of_ports_only_for_ipv4() -> None:
    """A machine without IPv6 says the same of every IPv6 address: there the next address is tried, as before."""
    error = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    assert shortage_in(error, "192.0.2.1") is not None
    assert shortage_in(error, "2001:db8::1") is None
