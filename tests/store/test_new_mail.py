"""The hand-over of new mail in memory: everything or a poll of the store, never more than there is room for."""

from collections.abc import Callable
from functools import partial

import trio
from trio.testing import MockClock

from appliance.environment import Environment
from appliance.store.new_mail import NEW_MAIL_BYTES, NEW_MAIL_MESSAGES, Acceptance, Fresh, NewMail, due_recipients
from tests.deliver.simulated_delivery import message


def test_what_is_offered_is_taken_once() -> None:
    new_mail, env = NewMail(), Environment()
    sent = [message(env, "acc", f"user{number}@a.test") for number in range(3)]
    for each in sent:
        new_mail.offer(each, Acceptance(1))
    assert new_mail.take() == [Fresh(each, 1) for each in sent]
    assert new_mail.take() == []
    assert not new_mail.poll_requested()


def test_a_message_with_suppressed_recipients_is_left_to_the_store() -> None:
    """Those that bounced at once must not be tried, so the store is asked who is left."""
    new_mail = NewMail()
    new_mail.offer(message(Environment(), "acc", "ada@a.test", "bob@a.test"), Acceptance(1, has_suppressed=True))
    assert new_mail.take() == []
    assert new_mail.poll_requested()
    assert not new_mail.poll_requested()


def test_there_is_room_for_so_many() -> None:
    new_mail, new = NewMail(), message(Environment(), "acc", "ada@a.test")
    for _ in range(NEW_MAIL_MESSAGES + 1):
        new_mail.offer(new, Acceptance(1))
    assert len(new_mail.take()) == NEW_MAIL_MESSAGES
    assert new_mail.poll_requested()
    new_mail.offer(new, Acceptance(1))
    assert len(new_mail.take()) == 1


def test_there_is_room_for_so_many_bytes() -> None:
    new_mail, env = NewMail(), Environment()
    large = message(env, "acc", "ada@a.test", mime=b"x" * (NEW_MAIL_BYTES // 2))
    for _ in range(3):
        new_mail.offer(large, Acceptance(1))
    assert len(new_mail.take()) == 2
    assert new_mail.poll_requested()


async def test_what_is_coming_is_known() -> None:
    new_mail, env = NewMail(), Environment()
    taken, left, refused = (message(env, "acc", "ada@a.test") for _ in range(3))
    for each in (taken, left, refused):
        assert each.id not in new_mail
        new_mail.expect(each.id)
        assert each.id in new_mail
    new_mail.offer(taken, Acceptance(1))
    new_mail.offer(left, Acceptance(1, has_suppressed=True))
    new_mail.give_up(refused.id)
    assert [each.id in new_mail for each in (taken, left, refused)] == [True, False, False]
    new_mail.take()
    assert taken.id not in new_mail


async def test_who_waits_is_woken(autojump_clock: MockClock) -> None:
    new_mail = NewMail()
    new = message(Environment(), "acc", "ada@a.test")
    wakes: list[Callable[[], None]] = [
        partial(new_mail.offer, new, Acceptance(1)),
        new_mail.request_poll,
        new_mail.wake,
    ]
    for wake in wakes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(new_mail.wait, 50)
            await trio.sleep(1)
            before = trio.current_time()
            wake()
        assert trio.current_time() == before
    await new_mail.wait(5)
    assert trio.current_time() == 8


def test_recipients_are_as_the_store_would_give_them() -> None:
    new = message(Environment(), "acc", "ada@a.test", "bob@b.test")
    found = due_recipients(Fresh(new, 1))
    assert [(each.id, each.address, each.domain) for each in found] == [
        (recipient.id, recipient.address, recipient.domain) for recipient in new.recipients
    ]
    assert {(each.message_id, each.account_id, each.attempt_count, each.recipient_count) for each in found} == {
        (new.id, "acc", 0, 2)
    }
    assert {(each.envelope_from, each.subject, each.charged) for each in found} == {("shop@example.com", "s", 1)}
