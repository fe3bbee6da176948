"""Memory for bodies: it grows with what has come, each owner has a share, and old bodies come to their end first."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
import trio
from msgspec import UNSET, Meta, UnsetType
from trio.testing import MockClock, wait_all_tasks_blocked

from appliance.concurrency.fair_share import MemoryBudget
from appliance.errors import Code, Refused
from appliance.web.exchange import (
    ANONYMOUS_BYTES,
    MEMORY_FACTOR,
    MEMORY_STEP,
    MEMORY_WAIT,
    SMALL_BODY,
    UNCOUNTED,
    BodyBudgets,
    BodyOwner,
    ClientGone,
    RequestBody,
    check_content_type,
    check_encoding,
    decode_body,
)

KIB = 1024
MIB = 1024 * KIB


class Client:
    """What a client sends, as ASGI has it; it may wait before any piece."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[dict[str, Any]](100)

    def sends(self, *pieces: int, more: bool = True) -> None:
        for size in pieces:
            self._send.send_nowait({"type": "http.request", "body": bytes(size), "more_body": True})
        if not more:
            self._send.send_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def receive(self) -> dict[str, Any]:
        return await self._receive.receive()


def used(owner: BodyOwner) -> int:
    return sum(memory.shares.of(owner.name) for memory in {owner.small, owner.large})


@asynccontextmanager
async def reading(*bodies: RequestBody) -> AsyncIterator[None]:
    """These bodies, being read and then held, until the end of the block."""

    async def read(body: RequestBody) -> None:
        async with body:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for body in bodies:
            nursery.start_soon(read, body)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("length", [64 * KIB, 16 * MIB, None])
async def test_a_promise_takes_nothing(length: int | None) -> None:
    budget, client = BodyBudgets(256 * MIB), Client()
    owner = budget.of_network("192.0.2.1")
    async with reading(RequestBody(client.receive, length, 16 * MIB, owner)):
        assert used(owner) == 0
        client.sends(UNCOUNTED)
        await wait_all_tasks_blocked()
        assert used(owner) == 0
        client.sends(1)
        await wait_all_tasks_blocked()
        assert used(owner) == MEMORY_STEP * MEMORY_FACTOR
    assert used(owner) == 0


async def test_memory_grows_with_what_has_come_and_is_given_back() -> None:
    """A body of undeclared length is counted as small first, as large once it is, and not at all at its end."""
    budget, client = BodyBudgets(256 * MIB), Client()
    owner = budget.of_account("acc_1")
    body = RequestBody(client.receive, None, 16 * MIB, owner)
    async with reading(body):
        client.sends(*[64 * KIB] * 3)
        await wait_all_tasks_blocked()
        assert (owner.small.shares.of("acc_1"), owner.large.shares.of("acc_1")) == (3 * MEMORY_STEP * MEMORY_FACTOR, 0)
        client.sends(*[64 * KIB] * 3)
        await wait_all_tasks_blocked()
        assert (owner.small.shares.of("acc_1"), owner.large.shares.of("acc_1")) == (0, 6 * MEMORY_STEP * MEMORY_FACTOR)
    assert used(owner) == 0


async def test_a_body_is_what_was_sent_and_no_longer_than_allowed() -> None:
    owner = BodyBudgets(256 * MIB).of_account("acc_1")
    for sizes, limit in (((10, 20), 30), ((10, 20, 1), 30)):
        client = Client()
        client.sends(*sizes, more=False)
        body = RequestBody(client.receive, None, limit, owner)
        if sum(sizes) > limit:
            with pytest.raises(Refused) as refused:
                await body.__aenter__()
            assert refused.value.code is Code.PAYLOAD_TOO_LARGE
        else:
            async with body as got:
                assert got == bytes(30)

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await RequestBody(gone, None, 30, owner).__aenter__()


async def test_clients_that_have_not_authenticated_delay_no_account(autojump_clock: MockClock) -> None:
    budget = BodyBudgets(64 * MIB)
    for number in range(9):
        network = budget.of_network(f"192.0.2.{number}")
        with trio.move_on_after(0.1):
            await network.small.take(network.name, ANONYMOUS_BYTES // 8, age=-1, patience=MEMORY_WAIT)
    began = trio.current_time()
    for size in (SMALL_BODY, MIB):
        client = Client()
        client.sends(*[64 * KIB] * (size // (64 * KIB)), more=False)
        async with RequestBody(client.receive, size, 16 * MIB, budget.of_account("acc_1")) as body:
            assert len(body) == size
    assert trio.current_time() == began


async def test_an_ordinary_login_never_waits(autojump_clock: MockClock) -> None:
    """With all memory of its kind in use, even by its own network, a body of ordinary size is read at once."""
    budget, client = BodyBudgets(64 * MIB), Client()
    owner = budget.of_network("192.0.2.1")
    await owner.small.take("192.0.2.1", ANONYMOUS_BYTES, age=-1, patience=MEMORY_WAIT)
    await owner.small.take("192.0.2.2", ANONYMOUS_BYTES, age=-1, patience=MEMORY_WAIT)
    client.sends(UNCOUNTED, more=False)
    began = trio.current_time()
    async with RequestBody(client.receive, None, 64 * KIB, owner) as body:
        assert len(body) == UNCOUNTED
    assert trio.current_time() == began


async def test_bodies_that_together_are_too_many_all_come_to_their_end(autojump_clock: MockClock) -> None:
    """Twenty that grow side by side in memory for two do not stand still half read: none waits to be refused."""
    memory = MemoryBudget(20 * MEMORY_STEP, owner_part=1)
    finished: list[int] = []

    async def read(number: int) -> None:
        owner = BodyOwner(f"acc_{number}", memory, memory)
        client = Client()
        client.sends(*[MEMORY_STEP] * 5, more=False)
        async with RequestBody(client.receive, 5 * MEMORY_STEP, 16 * MIB, owner):
            await trio.sleep(0.1)  # storing it
        finished.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(read, number)
    assert sorted(finished) == list(range(20))
    assert trio.current_time() < MEMORY_WAIT


async def test_a_body_without_memory_is_refused_after_a_while(autojump_clock: MockClock) -> None:
    """The client is told to come back, after it has waited once for all the memory that its body needs."""
    owner = BodyBudgets(64 * MIB).of_network("192.0.2.1")
    assert await owner.small.take("192.0.2.2", ANONYMOUS_BYTES, age=-1, patience=0.0)  # all there is
    client = Client()
    client.sends(*[MEMORY_STEP] * 3, more=False)
    with pytest.raises(Refused) as refused:
        await RequestBody(client.receive, None, 16 * MIB, owner).__aenter__()
    assert (refused.value.code, refused.value.retry_after) == (Code.TEMPORARY_FAILURE, 2)
    assert trio.current_time() == pytest.approx(MEMORY_WAIT)
    assert used(owner) == 0


# ---- what the headers say of a body


@pytest.mark.parametrize(
    "text", [b"application/json", b"application/json; charset=utf-8", b"Application/JSON;charset=UTF-8"]
)
def test_json_is_the_content_type(text: bytes) -> None:
    check_content_type(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "expected application/json") for text in (b"", b"text/plain", b"application/jsonx", b"multipart/x")),
        *(
            (b"application/json; charset=" + charset, f"charset {charset.decode()} is not supported")
            for charset in (b"latin1", b"utf-16", b"ISO-8859-1")
        ),
        (b'application/json; charset="us-ascii"', "charset us-ascii is not supported"),
    ],
)
def test_another_content_type_is_refused_by_name(text: bytes, words: str) -> None:
    with pytest.raises(Refused, match=f"^Content-Type: {words}"):
        check_content_type(text)


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"deflate, gzip"])
def test_a_compressed_body_is_refused_by_name(encoding: bytes) -> None:
    """A body is sent as it is: a small compressed one could become any size."""
    check_encoding(b"identity")
    with pytest.raises(Refused, match=f"^Content-Encoding: {encoding.decode()} is not supported"):
        check_encoding(encoding)


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Painted(msgspec.Struct):
    colors: Annotated[list[Color], Meta(min_length=1)] | None = None
    kind: Literal["wall", "door"] | UnsetType = UNSET
    parts: list["Painted"] = []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"colors": ["red", "green"]}', "colors[1]: must be one of red, blue"),
        (b'{"kind": "roof"}', "kind: must be one of door, wall"),
        (b'{"parts": [{}, {"kind": "roof"}]}', "parts[1].kind: must be one of door, wall"),
        (b'{"kind": 1}', "kind: expected a string, got a number"),
    ],
)
def test_an_unknown_value_names_those_that_exist(body: bytes, text: str) -> None:
    with pytest.raises(Refused) as caught:
        decode_body(body, Painted)
    assert caught.value.text == text
