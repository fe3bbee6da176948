"""MX preference: the first server that answers gets the mail."""

from pathlib import Path

from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx, hang_up


async def test_a_dead_mx_is_passed_over(tmp_path: Path) -> None:
    """Where the preferred server is dead, hangs up or is not open, the second gets the mail in the same attempt."""
    async with world(tmp_path, delays("1h")) as made:
        troubles = {
            "dead": None,
            "gone": FakeMx(answers={"greeting": hang_up}),
            "cut": FakeMx(answers={"MAIL": hang_up}),
            "closed": FakeMx(answers={"greeting": b"554 5.3.2 no service\r\n"}),
            "busy": FakeMx(answers={"greeting": b"421 4.3.2 too busy\r\n"}),
        }
        sent = {}
        for name, first in troubles.items():
            second, third = FakeMx(), FakeMx()
            await made.domain(f"{name}.test", first, second, third)
            sent[name] = (await made.send(f"ada@{name}.test"), second, third)
        await made.final(*(message for message, _, _ in sent.values()))
        for name, (message, second, third) in sent.items():
            assert len(second.messages) == 1, name
            assert third.sessions == 0, name
            (attempt,) = made.attempts(message)
            assert attempt.host == f"mx1.{name}.test"


async def test_a_refusal_is_not_taken_elsewhere(tmp_path: Path) -> None:
    async with world(tmp_path, delays("1h")) as made:
        refusals = {
            "refused": FakeMx(answers={"RCPT": b"550 5.7.1 no\r\n"}),
            "deferred": FakeMx(answers={"RCPT": b"450 4.2.0 later\r\n"}),
            "perhaps": FakeMx(answers={".": hang_up}),
        }
        sent = []
        seconds = []
        for name, first in refusals.items():
            seconds.append(FakeMx())
            await made.domain(f"{name}.test", first, seconds[-1])
            sent.append(await made.send(f"ada@{name}.test"))
        await made.tried(*sent)
        assert [made.recipient(message).status for message in sent] == ["bounced", "deferred", "deferred"]
        assert [second.sessions for second in seconds] == [0, 0, 0]
