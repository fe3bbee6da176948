"""Mail that has just come in, handed over in memory: who gets it, in which order, signed once."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from appliance.deliver.pending import PENDING_OF_NEW, PENDING_OF_ONE, PENDING_PER_POOL
from appliance.deliver.preparing import THREAD_BYTES
from appliance.deliver.providers import PoolLimits
from appliance.store.messages import Messages
from appliance.store.new_mail import Acceptance
from appliance.store.queue import Queue
from tests.deliver.simulated_delivery import MIME, OK, SIGNATURE, domains, message, one, stage
from tests.fakes.mx import Answer, FakeMx, silence, wait_and_say


async def test_new_mail_is_handed_over_in_memory(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send("first@a.test"))
        await trio.sleep(1)
        looks: list[object] = []
        monkeypatch.setattr(Queue, "due", lambda *_, **__: looks.append("due"))
        monkeypatch.setattr(Messages, "to_send", lambda *_: looks.append("to_send"))
        new = await played.offer("ada@a.test", "bob@a.test")
        await played.final(new, within=1)
        assert looks == []
        assert server.messages[-1].data == SIGNATURE + MIME
        assert server.messages[-1].recipients == ("ada@a.test", "bob@a.test")
        assert await played.rows("SELECT status FROM messages WHERE id = :id", id=new) == [("delivered",)]


async def test_a_large_message_is_sent_as_stored_without_being_read(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its last session it is in memory; the next one of a message that was deferred reads it from the store."""
    later: list[Answer] = [OK, OK, b"451 4.3.0 later\r\n", OK]
    server = FakeMx(answers={".": later})
    mime = MIME + b".dot\r\n" + b"x" * 76 + b"\r\n" * (THREAD_BYTES // 2)
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send("first@a.test"))
        reads: list[str] = []
        content = Messages.content

        async def noted(messages: Messages, message_id: str) -> bytes:
            reads.append(message_id)
            return await content(messages, message_id)

        monkeypatch.setattr(Messages, "content", noted)
        await played.final(await played.offer("ada@a.test", mime=mime), within=1)
        assert (server.messages[-1].data, reads) == (SIGNATURE + mime, [])
        again = await played.offer("bob@a.test", mime=mime)
        await played.final(again)
        assert (server.messages[-1].data, reads) == (SIGNATURE + mime, [again])


async def test_a_look_leaves_alone_what_is_coming(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mail that is on disk, but not offered yet, is not taken by a look in between; offered, it goes from memory.

    Otherwise that mail counts as passed over while its pool is busy, and all that follows it has to go by the store.
    """
    server = FakeMx(answers={".": wait_and_say(0.5, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1)) as played:
        await played.final(await played.send("first@a.test"))
        new_mail, account = played.scheduler.new_mail, played.accounts["demo"]
        read: list[str] = []
        monkeypatch.setattr(Messages, "to_send", lambda _, message_id: read.append(message_id))
        sent = []
        for number in range(3 * PENDING_PER_POOL):
            new = message(played.env, account, f"user{number}@a.test")
            new_mail.expect(new.id)
            charged = await played.store.messages.accept(new)
            new_mail.request_poll()
            await trio.sleep(0.11)  # long enough for a look
            new_mail.offer(new, charged)
            sent.append(new.id)
        await played.final(*sent, within=200)
        assert read == []
        assert {await played.recipient(each) for each in sent} == {("delivered", 1)}


async def test_an_account_s_first_few_are_not_kept_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": wait_and_say(0.3, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1)) as played:
        await played.final(await played.send("first@a.test"))

        async def offer(account: str, count: int) -> list[str]:
            return [await played.offer(f"u{number}@a.test", account=account) for number in range(count)]

        await offer("demo", PENDING_OF_NEW + 10)
        await trio.sleep(0.05)  # all of it is taken, and one is on its way
        burst = await offer("other", PENDING_OF_ONE)
        began = trio.current_time()
        await played.final(*burst, within=30)
        assert trio.current_time() - began < 0.3 * 2 * (PENDING_OF_ONE + 1)


async def test_mail_long_in_the_making_is_found_beside_a_stuck_server(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with stage(
        tmp_path,
        *domains({"stuck.test": FakeMx(answers={"greeting": silence}), "good.test": FakeMx()}),
        limits=PoolLimits(concurrency=1),
    ) as played:
        await trio.sleep(2.5)  # so that what is done every second after the next lines is not when pools are told
        await played.send("first@stuck.test")
        await played.send("second@stuck.test")
        new = message(played.env, played.accounts["demo"], "ada@good.test")
        for _ in range(10):
            await trio.sleep(0.9)
            await played.send("other@good.test")
        await played.store.messages.accept(new)
        played.scheduler.new_mail.offer(new, Acceptance(1, has_suppressed=True))
        await played.final(new.id, within=3)
        assert await played.recipient(new.id) == ("delivered", 1)


async def test_suppressed_recipients_are_not_tried(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        await played.store.suppressions.add(played.accounts["demo"], "bob@a.test", "by hand")
        new = await played.offer("ada@a.test", "bob@a.test")
        await played.final(new, within=2)
        assert [got.recipients for got in server.messages] == [("ada@a.test",)]
        assert await played.rows("SELECT status FROM messages WHERE id = :id", id=new) == [("partial",)]


@pytest.mark.slow  # ten seconds of a processor; tests/deliver/test_pending.py has the rule
async def test_new_mail_does_not_always_overtake(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": wait_and_say(0.1, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=2)) as played:
        old = [await played.send(f"old{number}@a.test") for number in range(PENDING_OF_NEW + PENDING_PER_POOL)]

        async def keep_sending() -> None:
            while True:
                await played.offer("new@a.test")
                await trio.sleep(0.04)  # 25 a second, and 20 can go

        played.nursery.start_soon(keep_sending)
        await played.final(*old, within=150)  # new mail gets every second turn
        assert {await played.recipient(each) for each in old} == {("delivered", 1)}


async def test_one_message_for_several_domains_is_signed_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *domains({name: FakeMx() for name in ("a.test", "b.test", "c.test")})) as played:
        sent = await played.send("ada@a.test", "bob@b.test", "cy@c.test")
        await played.final(sent, within=2)
        assert played.signer.signed == 1


async def test_a_message_that_cannot_be_signed_is_deferred(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        sign, sign_here = played.signer.sign, played.signer.sign_here

        def failing(message: Any, made: Any) -> Any:
            return ValueError("no") if b"bad" in message.mime else made

        async def fail_for_one(messages: Any) -> Any:
            return [failing(message, made) for message, made in zip(messages, await sign(messages), strict=True)]

        # A message that arrives alone is signed without a thread.
        monkeypatch.setattr(played.signer, "sign", fail_for_one)
        monkeypatch.setattr(played.signer, "sign_here", lambda message: failing(message, sign_here(message)))
        bad = await played.offer("ada@a.test", mime=MIME + b"bad\r\n")
        good = await played.send("bob@a.test")
        await played.final(good, within=2)
        assert await played.recipient(bad) == ("deferred", 1)
        ((response,),) = await played.rows("SELECT smtp_response FROM attempts WHERE smtp_code IS NULL")
        assert response == "4.3.0 an error on our side; it is in the operator's log"
