"""Signing: with the domain's keys, once a message, off the event loop, several in one trip to a thread."""

import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio

from appliance.deliver import signer as signer_module
from appliance.deliver.desk import PIECES, Desk
from appliance.deliver.signer import Signer
from appliance.message.dkim import SigningKey
from appliance.model import Role
from appliance.outside import Outside
from appliance.signing_keys import SigningKeys
from appliance.store import Store, open_store
from tests.e2e.delivery.verifier import signatures, verifies

MIME = b"From: shop@example.com\r\nTo: ada@example.net\r\nSubject: s\r\n\r\nHello.\r\n"
KEY = b"k" * 32


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store with one account that has one domain."""
    async with open_store(tmp_path, Outside(), inline=True) as opened:
        yield opened


async def prepared(store: Store) -> tuple[Signer, str]:
    """A signer, and the account."""
    made = await store.accounts.create("demo", "demo@example.org", "hash", Role.CUSTOMER, None)
    await store.access.add_domain(made.id, "example.com", usable=True)
    return Signer(SigningKeys(store, Outside(), KEY), Outside()), made.id


async def test_a_message_is_signed_with_both_keys(store: Store) -> None:
    """The keys are made when first needed, by whoever comes first, and both signatures verify by their records."""
    signer, account = await prepared(store)
    results: list[bytes] = []

    async def sign(number: int) -> None:
        results.append(await signer.signature(f"msg_{number}", account, "example.com", MIME))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(sign, number)
    stored = store.dkim_keys.of(account, "example.com")
    assert len(stored) == 2
    records = {f"{key.selector}._domainkey.example.com.".encode(): key.record.encode() for key in stored}
    for signature in results:
        assert signatures(signature + MIME) == 2
        assert [verifies(signature + MIME, number, records) for number in range(2)] == [True, True]


async def test_a_message_is_signed_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parcels of one message for many destinations share one signature, at the same time or later."""
    signer, account = await prepared(store)
    signed: list[bytes] = []

    def slow(mime: bytes, keys: list[SigningKey], *, now_seconds: int) -> bytes:
        signed.append(mime)
        time.sleep(0.05)
        return b"DKIM-Signature: x\r\n"

    monkeypatch.setattr(signer_module, "sign", slow)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(signer.signature, "msg_1", account, "example.com", MIME)
    await signer.signature("msg_1", account, "example.com", MIME)
    assert len(signed) == 1


async def test_new_keys_are_noticed(store: Store) -> None:
    """After a rotation from the shell the new keys sign within a second or so."""
    signer, account = await prepared(store)
    await signer.signature("msg_1", account, "example.com", MIME)
    await SigningKeys(store, Outside(), KEY).rotate(account, "example.com")
    fresh = {key.selector for key in store.dkim_keys.of(account, "example.com") if key.retired_at is None}
    await trio.sleep(1.1)
    signature = (await signer.signature("msg_2", account, "example.com", MIME)).decode()
    assert all(f"s={selector};" in signature for selector in fresh)


# ---- the desk


async def test_work_is_done_in_threads_and_in_few_trips() -> None:
    """A hundred pieces give their own results, none on the event loop's thread, several in each trip."""
    desk: Desk[int] = Desk(2)
    threads: list[int] = []
    results: dict[int, int] = {}

    async def ask(number: int) -> None:
        def work() -> int:
            threads.append(threading.get_ident())
            return number * number

        results[number] = await desk.run(work)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, number)
    assert results == {number: number * number for number in range(100)}
    assert threading.get_ident() not in threads


async def test_no_trip_takes_too_much() -> None:
    """However many wait, a trip has a bounded number of pieces, so that two threads share them."""
    desk: Desk[None] = Desk(2)
    busy: list[tuple[int, float]] = []

    def work() -> None:
        busy.append((threading.get_ident(), time.monotonic()))
        time.sleep(0.005)

    async with trio.open_nursery() as nursery:
        for _ in range(8 * PIECES):
            nursery.start_soon(desk.run, work)
    assert len({thread for thread, _ in busy}) == 2


async def test_a_failure_is_the_pieces_own() -> None:
    """One that raises does so for whoever asked, and its neighbours in the same trip have their results."""
    desk: Desk[int] = Desk(1)
    results: list[int | str] = []

    async def ask(number: int) -> None:
        try:
            results.append(await desk.run(lambda: 60 // number))
        except ZeroDivisionError:
            results.append("failed")

    async with trio.open_nursery() as nursery:
        for number in (1, 0, 2, 3):
            nursery.start_soon(ask, number)
    assert sorted(map(str, results)) == ["20", "30", "60", "failed"]


async def test_one_that_gives_up_leaves_nobody_waiting() -> None:
    """Cancelled while they wait, or while they have gone to the thread: all others still get their results."""
    desk: Desk[int] = Desk(1)
    results: list[int] = []

    def slow(number: int) -> int:
        time.sleep(0.01)
        return number

    async def ask(number: int, scope: trio.CancelScope) -> None:
        with scope:
            results.append(await desk.run(partial(slow, number)))

    scopes = [trio.CancelScope() for _ in range(40)]
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for number, scope in enumerate(scopes):
                nursery.start_soon(ask, number, scope)
            await trio.sleep(0.02)
            for scope in scopes[::2]:
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert set(range(1, 40, 2)) <= set(results)
    assert await desk.run(lambda: 7) == 7
