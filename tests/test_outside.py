"""Ids sort, never collide and cannot be guessed; a dialled connection does not show its address."""

import re
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.outside import Outside, identifier_from, identifier_time

NOW = 1_700_000_000_000_000
ID = re.compile(r"msg_[0-9a-f]{32}")


def test_ids_are_all_different_and_look_alike() -> None:
    """A hundred thousand of them, of one shape and length."""
    ids = [Outside().identifier("msg") for _ in range(100_000)]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {len(ids[0])}
    assert all(ID.fullmatch(each) for each in ids)


def test_ids_of_the_same_moment_are_different() -> None:
    """The clock is not what keeps them apart, and their order within a microsecond tells nothing."""
    outside = Outside(now=lambda: NOW)
    ids = [outside.identifier("msg") for _ in range(100_000)]
    assert len(set(ids)) == len(ids)
    assert ids != sorted(ids)


@given(st.integers(0, 2**53), st.integers(1, 2**40))
def test_ids_sort_as_they_were_made(earlier: int, pause: int) -> None:
    """A later microsecond gives a greater id, now and in two hundred years."""
    first = Outside(now=lambda: earlier).identifier("msg")
    second = Outside(now=lambda: earlier + pause).identifier("msg")
    assert first < second
    assert len(first) == len(second)


@given(st.integers(0, 2**53))
def test_the_least_id_of_a_moment_is_below_all_of_it(moment: int) -> None:
    """A range of time is a range of ids."""
    least = identifier_from("msg", moment)
    for bits in (0, 2**74 - 1):
        made = Outside(now=lambda: moment, random_bits=lambda bits=bits: bits).identifier("msg")  # type: ignore[misc]  # a default argument in a lambda
        assert least <= made < identifier_from("msg", moment + 1)


@given(st.integers(0, 2**54 - 1), st.integers(0, 2**74 - 1))
def test_an_id_is_time_then_randomness_in_hexadecimal(moment: int, bits: int) -> None:
    """32 digits: 54 bits of microseconds above 74 random ones; the time can be read back."""
    made = Outside(now=lambda: moment, random_bits=lambda: bits).identifier("msg")
    assert made == f"msg_{moment << 74 | bits:032x}"
    assert identifier_time(made) == moment


def test_the_random_part_is_random() -> None:
    """74 bits, each of them as often set as not."""
    bits = [Outside().random_bits() for _ in range(20_000)]
    assert max(bits) < 2**74
    for place in range(74):
        share = sum(number >> place & 1 for number in bits) / len(bits)
        assert 0.45 < share < 0.55


def test_threads_are_never_handed_the_same_bits() -> None:
    """Ids are made in several threads at once."""
    found: list[list[int]] = [[] for _ in range(4)]

    def draw(into: list[int]) -> None:
        into.extend(Outside().random_bits() for _ in range(20_000))

    threads = [threading.Thread(target=draw, args=(into,)) for into in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({bits for each in found for bits in each}) == 80_000


FORKS = """
import os
from appliance.outside import Outside
draw = Outside().random_bits
draw()  # so that something is read ahead
child = os.fork()
os.write(1, "".join(f"{draw()}\\n" for _ in range(100)).encode())
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_process_is_not_handed_the_same_bits() -> None:
    """What was read ahead before the fork is used by one of the two."""
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    drawn = ended.stdout.split()
    assert len(set(drawn)) == len(drawn) == 200


def test_the_clock_tells_microseconds() -> None:
    """Whole ones, since 1970, going on."""
    first, second = Outside().now(), Outside().now()
    assert 1_700_000_000_000_000 < first <= second < 10_000_000_000_000_000


def test_tokens_are_as_long_as_asked_for() -> None:
    """And not the same twice."""
    first, second = Outside().token_bytes(32), Outside().token_bytes(32)
    assert len(first) == len(second) == 32
    assert first != second


async def test_a_refused_connection_does_not_tell_the_address() -> None:
    """Its words reach customers, and the address may be one of the operator's own network."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(ConnectionRefusedError) as caught:
            await Outside().dial("127.0.0.1", taken.getsockname()[1])
    assert str(caught.value) == "[Errno 111] Connection refused"
