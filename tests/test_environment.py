"""Ids sort, never collide and cannot be guessed; a dialled connection does not show its address."""

import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.environment import Environment, identifier_from, identifier_time

NOW = 1_700_000_000_000_000
ID = re.compile(r"msg_[0-9a-f]{32}")


def test_ids_are_all_different_and_look_alike() -> None:
    ids = [Environment().identifier("msg") for _ in range(20_000)]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {len(ids[0])}
    assert all(ID.fullmatch(each) for each in ids)


def test_ids_of_the_same_moment_are_different() -> None:
    env = Environment(now=lambda: NOW)
    ids = [env.identifier("msg") for _ in range(20_000)]
    assert len(set(ids)) == len(ids)
    assert ids != sorted(ids)


@given(st.integers(0, 2**53), st.integers(1, 2**40))
def test_ids_sort_as_they_were_made(earlier: int, pause: int) -> None:
    first = Environment(now=lambda: earlier).identifier("msg")
    second = Environment(now=lambda: earlier + pause).identifier("msg")
    assert first < second
    assert len(first) == len(second)


@given(st.integers(0, 2**53))
def test_the_least_id_of_a_moment_is_below_all_of_it(moment: int) -> None:
    least = identifier_from("msg", moment)
    for bits in (0, 2**74 - 1):
        made = Environment(now=lambda: moment, random_bits=lambda bits=bits: bits).identifier("msg")  # type: ignore[misc]  # a default argument in a lambda
        assert least <= made < identifier_from("msg", moment + 1)


@given(st.integers(0, 2**54 - 1), st.integers(0, 2**74 - 1))
def test_an_id_is_time_then_randomness_in_hexadecimal(moment: int, bits: int) -> None:
    made = Environment(now=lambda: moment, random_bits=lambda: bits).identifier("msg")
    assert made == f"msg_{moment << 74 | bits:032x}"
    assert identifier_time(made) == moment


@given(st.integers(0, 2**54 - 1), st.integers(0, 2**74 - 1), st.integers(0, 60))
def test_many_ids_of_a_moment_ascend_and_differ(moment: int, bits: int, count: int) -> None:
    env = Environment(now=lambda: moment, random_bits=lambda: bits)
    made = env.identifiers("rcp", count)
    assert len(set(made)) == count
    assert made == sorted(made) == env.identifiers("rcp", count)
    assert all(identifier_time(one) == moment and len(one) == len("rcp_") + 32 for one in made)


def test_the_bits_of_many_ids_are_all_used() -> None:
    numbers = [int(one.rpartition("_")[2], 16) for one in Environment(now=lambda: 0).identifiers("rcp", 200)]
    for bit in range(74):
        assert 50 < sum(number >> bit & 1 for number in numbers) < 150


async def test_a_refused_connection_does_not_tell_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(ConnectionRefusedError) as caught:
            await Environment().dial("127.0.0.1", taken.getsockname()[1])
    assert str(caught.value) == "[Errno 111] Connection refused"
