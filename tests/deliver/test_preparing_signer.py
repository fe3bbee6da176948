"""Signing: with the domain's keys, once a message, off the event loop, several in one trip to a thread."""

import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from appliance.deliver import preparing
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import (
    KEYS_FRESH,
    RSA_TOGETHER,
    SIGNATURES_KEPT,
    SIGNED_HERE_EVERY,
    SIGNED_TOGETHER,
    DeliveryPath,
    Preparing,
    Ready,
    Signer,
    Unsigned,
)
from appliance.deliver.providers import PoolLimits
from appliance.environment import Environment
from appliance.keys.dkim_keys import SigningKeys
from appliance.message.dkim import Algorithm, SigningKey
from appliance.model.accounts import Role
from appliance.store import Store, open_store
from appliance.store.domains import Domains
from tests.deliver.test_pending import ROUTE, envelope
from tests.e2e.delivery.verifier import signatures, verifies

MIME = b"From: shop@example.com\r\nTo: ada@example.net\r\nSubject: s\r\n\r\nHello.\r\n"
KEY = b"k" * 32


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Environment(), inline=True) as opened:
        yield opened


async def prepared(store: Store, env: Environment | None = None) -> tuple[Signer, str]:
    made = await store.accounts.create("demo", "demo@example.org", "hash", Role.CUSTOMER, None)
    await store.access.add_domain(made.id, "example.com", usable=True)
    return Signer(SigningKeys(store, Environment(), KEY), env or Environment()), made.id


async def test_messages_are_signed_with_both_keys(store: Store) -> None:
    signer, account = await prepared(store)
    found: list[list[SigningKey]] = []

    async def find() -> None:
        found.append((await signer.find(account, "example.com")).keys)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(find)
    results = await signer.sign([Unsigned(f"msg_{number}", MIME, keys) for number, keys in enumerate(found)])
    stored = await store.dkim_keys.of(account, "example.com")
    assert len(stored) == 2
    records = {f"{key.selector}._domainkey.example.com.".encode(): key.record.encode() for key in stored}
    for signature in results:
        assert isinstance(signature, bytes)
        assert signatures(signature + MIME) == 2
        assert [verifies(signature + MIME, number, records) for number in range(2)] == [True, True]


async def test_a_signature_is_remembered(store: Store) -> None:
    signer, account = await prepared(store)
    keys = [key for key in (await signer.find(account, "example.com")).keys if key.algorithm is Algorithm.ED25519]
    (signature,) = await signer.sign([Unsigned("msg_first", MIME, keys)])
    assert signer.made("msg_first") == signature
    await signer.sign([Unsigned(f"msg_{number}", MIME, keys) for number in range(SIGNATURES_KEPT)])
    assert signer.made("msg_first") is None


async def test_a_failure_is_the_messages_own(store: Store) -> None:
    """One that cannot be signed has the reason for its result, and its neighbours have their signatures."""
    signer, account = await prepared(store)
    keys = (await signer.find(account, "example.com")).keys
    messages = [Unsigned("msg_1", MIME, keys), Unsigned("msg_2", b"no header", keys), Unsigned("msg_3", MIME, keys)]
    assert [type(result).__name__ for result in await signer.sign(messages)] == ["bytes", "ValueError", "bytes"]
    assert signer.made("msg_2") is None


async def test_signing_is_off_the_event_loop(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    signer, account = await prepared(store)
    keys = (await signer.find(account, "example.com")).keys
    threads: list[int] = []

    def slow(mime: bytes, keys: list[SigningKey], *, now_seconds: int) -> bytes:
        threads.append(threading.get_ident())
        time.sleep(0.02)
        return b"DKIM-Signature: x\r\n"

    monkeypatch.setattr(preparing, "sign", slow)
    ticks = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signer.sign, [Unsigned(f"msg_{number}", MIME, keys) for number in range(5)])
        while len(threads) < 5:
            await trio.sleep(0.001)
            ticks += 1
    assert threading.get_ident() not in threads
    assert ticks > 10


async def test_new_keys_are_noticed(store: Store) -> None:
    now = Environment().now()
    signer, account = await prepared(store, Environment(now=lambda: now))
    await signer.find(account, "example.com")
    await SigningKeys(store, Environment(), KEY).rotate(account, "example.com")
    fresh = {key.selector for key in await store.dkim_keys.of(account, "example.com") if key.retired_at is None}
    now += KEYS_FRESH - 1
    assert signer.known(account, "example.com") is not None
    now += 1
    assert signer.known(account, "example.com") is None
    assert {key.selector for key in (await signer.find(account, "example.com")).keys} == fresh


async def test_a_return_path_costs_no_query_for_each_message(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    read = Domains.return_path

    async def counted(self: Domains, account_id: str, name: str) -> str | None:
        asked.append(name)
        return await read(self, account_id, name)

    monkeypatch.setattr(Domains, "return_path", counted)
    now = Environment().now()
    env = Environment(now=lambda: now)
    signer, account = await prepared(store, env)
    await signer.find(account, "example.com")
    assert asked == []
    signer = Signer(signer.keys, env, return_paths=True)
    for expected in (None, "bounces.example.com"):
        for _ in range(3):
            assert (await signer.find(account, "example.com")).return_path == expected
        known = signer.known(account, "example.com")
        assert known is not None
        assert known.return_path == expected
        domain = await store.domains.find(account, "example.com")
        await store.domains.use_return_path(account, domain, in_use=True)
        now += KEYS_FRESH
    assert asked == ["example.com"] * 2


@pytest.mark.parametrize("algorithm", list(Algorithm))
async def test_only_a_message_that_arrives_alone_is_signed_without_a_thread(
    store: Store, autojump_clock: MockClock, algorithm: Algorithm
) -> None:
    """And only with Ed25519: an RSA signature would hold the event loop for milliseconds."""
    signer, account = await prepared(store)
    keys = [key for key in (await signer.find(account, "example.com")).keys if key.algorithm is algorithm]
    unused: Any = None
    making = Preparing(store=store, routes=unused, signer=signer, ramp=unused)
    path = DeliveryPath(ROUTE, keys)

    async def prepare(message: str) -> bytes | None:
        named = envelope(account, "a.test")._replace(message_id=message)
        limiter = PoolLimiter("a.test", PoolLimits())
        result = await making.prepare(named, path, limiter, mime=MIME, since=0.0, pending=1)
        return result.signature if isinstance(result, Ready) else None

    is_fast = algorithm is Algorithm.ED25519
    for number in range(3):
        await trio.sleep(SIGNED_HERE_EVERY)
        signature = await prepare(f"msg_alone{number}")
        assert (signature is not None) == is_fast
        if signature is not None:
            assert signatures(signature + MIME) == 1
    assert await prepare("msg_next") is None
    assert {ready.routed.envelope.message_id for ready in await making.signed() if isinstance(ready, Ready)} >= (
        {"msg_next"} if is_fast else {"msg_alone0"}
    )


@pytest.mark.parametrize(("algorithm", "most"), [(Algorithm.ED25519, SIGNED_TOGETHER), (Algorithm.RSA, RSA_TOGETHER)])
async def test_new_mail_does_not_wait_for_a_long_batch(store: Store, algorithm: Algorithm, most: int) -> None:
    """A batch is short by the time that its signatures take, and a new message is in the next one."""
    signer, account = await prepared(store)
    keys = [key for key in (await signer.find(account, "example.com")).keys if key.algorithm is algorithm]
    unused: Any = None
    making = Preparing(store=store, routes=unused, signer=signer, ramp=unused)
    path = DeliveryPath(ROUTE, keys)

    async def queue(message: str, new: int) -> None:
        queued = envelope(account, "a.test")._replace(message_id=message, new=new)
        await making.prepare(queued, path, PoolLimiter("a.test", PoolLimits()), mime=MIME, since=0.0, pending=1)

    for number in range(3 * SIGNED_TOGETHER):
        await queue(f"msg_{number}", 0)
    await queue("msg_new", 1)
    batch = [ready.routed.envelope.message_id for ready in await making.signed() if isinstance(ready, Ready)]
    assert len(batch) == most
    assert "msg_new" in batch[:2]
