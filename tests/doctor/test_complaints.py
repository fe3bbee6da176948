"""The rate of complaints: which of it is fine, a warning or a fault, and that too little mail says nothing."""

import pytest
import trio

from appliance.doctor import FindingLevel
from appliance.doctor.machine import judge_complaints
from appliance.model.feedback import ComplaintRate
from appliance.store import Store
from appliance.times import DAY
from tests.doctor.world import World


@pytest.mark.parametrize(
    ("complaints", "delivered", "level"),
    [
        (1, 999, None),
        (500, 999, None),
        (0, 10_000, None),
        (9, 10_000, FindingLevel.OK),
        (10, 10_000, FindingLevel.WARNING),
        (29, 10_000, FindingLevel.WARNING),
        (30, 10_000, FindingLevel.FAULT),
        (2, 1_000, FindingLevel.WARNING),
    ],
)
def test_the_lines(complaints: int, delivered: int, level: FindingLevel | None) -> None:
    found = judge_complaints([ComplaintRate("google", complaints, delivered)])
    assert [each.level for each in found] == ([] if level is None else [level])
    assert all(each.subject == "google" and f"{complaints:,} complaints" in each.text for each in found)


def test_others_are_named() -> None:
    """All that are no known provider's stand together."""
    (found,) = judge_complaints([ComplaintRate("", 50, 10_000)])
    assert (found.level, found.subject) == (FindingLevel.FAULT, "other providers")
    assert "0.50%" in found.text
    assert found.advice


def test_an_examination_reads_them(world: World) -> None:
    async def count(store: Store) -> None:
        day = store.feedback.env.now() // DAY
        for kind, ago, recipients in (("delivered", 0, 2_000), ("complained", 1, 8), ("complained", 30, 800)):
            row = f"('acc', {day - ago}, '{kind}', '', 'google', {recipients})"
            await store.engine.change(f"INSERT INTO daily_feedback VALUES {row}", {})

    world.stored(count)
    (found,) = [each for each in trio.run(world.examine) if each.check == "complaints"]
    assert (found.level, found.subject) == (FindingLevel.FAULT, "google")
    assert found.text == "8 complaints of 2,000 delivered in 7 days: 0.40%"
