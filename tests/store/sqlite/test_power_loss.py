"""The embedded database after the power has gone: some cuts of many (tests/torture/power_loss.py)."""

import pytest

from tests.torture import power_loss

# The disk sees all that is ever written.
pytestmark = pytest.mark.usefixtures("new_databases")

CUTS = 25  # of a run that are looked at


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_was_acknowledged_outlives_the_power(seed: int) -> None:
    cuts = power_loss.run(seed)
    looked_at = cuts[:: max(1, len(cuts) // CUTS)]
    assert len(looked_at) >= CUTS
    assert any(0 < len(cut.accepted) < len(cuts[-1].accepted) for cut in looked_at)
    assert [wrong for cut in looked_at if (wrong := power_loss.check(cut))] == []


def test_a_disk_that_lies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_loss._Content, "settle", lambda content: content.pending.pop())
    assert any(map(power_loss.check, power_loss.run(3)[-10:]))
