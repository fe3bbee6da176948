"""The Date that the server wrote follows a scheduled message to another time; a client's Date stays."""

from appliance.message.schedule import redated
from tests.message.samples import NOON, composed, read
from tests.message.submissions import message, written

LATER, DATE = NOON + 86_400, "Wed, 15 Nov 2023 22:13:20 +0000"


def test_a_composed_message() -> None:
    """Also its first 16 KiB alone, where long addresses fill them; no field of the sender is mistaken for the Date."""
    to = [f"{'n' * 240} {number} <{'a' * 60}{number}@{'b' * 60}.example>" for number in range(50)]
    mime = composed(to=to, headers={"X-Date": "Tue, 14 Nov 2023 22:13:20 +0000"})
    head = redated(mime[: 16 * 1024], NOON, LATER)
    assert head is not None
    moved = head + mime[16 * 1024 :]
    assert moved == redated(mime, NOON, LATER)
    assert (read(moved)["Date"], read(moved)["X-Date"]) == (DATE, "Tue, 14 Nov 2023 22:13:20 +0000")
    assert redated(moved, LATER, NOON) == mime
    assert redated(mime, LATER, NOON) is None


def test_a_submitted_message() -> None:
    moved = redated(written(message(without=[b"Date"])), NOON, LATER)
    assert moved is not None
    assert read(moved)["Date"] == DATE
    assert redated(written(message()), NOON, LATER) is None, "a client's Date stays"
