"""The quick fingerprint tells requests apart as the usual one does, and is that one without long texts."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message.quick_fingerprint import QUICK_FROM, is_quick, of_kind, quick_fingerprint
from appliance.message.request import decode, fingerprint
from appliance.message.schema import Attachment, SendRequest

LONG = "A" * QUICK_FROM

lengths = st.sampled_from([0, 1, 4, QUICK_FROM - 1, QUICK_FROM, QUICK_FROM + 1, 2 * QUICK_FROM])
texts = st.builds(lambda length, last: "A" * length + last, lengths, st.sampled_from(["", "B", "é", ":", "text4:"]))
files = st.builds(Attachment, st.sampled_from(["x", "y"]), texts)
requests = st.builds(
    SendRequest,
    sender=st.just("a"),
    to=st.sampled_from(["b", ["b"]]),
    text=st.one_of(st.just(msgspec.UNSET), texts),
    html=st.one_of(st.just(msgspec.UNSET), texts),
    attachments=st.one_of(st.just(msgspec.UNSET), st.lists(files, max_size=3)),
    variables=st.sampled_from([msgspec.UNSET, {"a": 1}, {"a": 1.0}, {"a": True}]),
)


@given(requests, requests)
def test_it_is_equal_exactly_when_the_usual_one_is(one: SendRequest, other: SendRequest) -> None:
    assert (quick_fingerprint(one, "key") == quick_fingerprint(other, "key")) is (
        fingerprint(one) == fingerprint(other)
    )


@given(requests)
def test_it_is_the_usual_one_without_long_texts(request: SendRequest) -> None:
    again = decode(msgspec.json.encode(request))
    made, usual = quick_fingerprint(request, "key"), fingerprint(request)
    assert made == quick_fingerprint(again, "key")
    assert is_quick(made) is (made != usual)
    assert not is_quick(usual)
    assert of_kind(made, again, "key") == made
    assert of_kind(usual, again, "key") == usual


def test_it_depends_on_the_key() -> None:
    request = SendRequest(sender="a", to="b", text=LONG + "A")
    assert quick_fingerprint(request, "one") != quick_fingerprint(request, "other")


@pytest.mark.parametrize(
    "parts", [[LONG, "A"], ["A", LONG], [LONG + "A"], [LONG, "B"], [LONG[1:] + "B", "A"], ["B" + LONG[1:], "A"]]
)
def test_files_are_told_apart(parts: list[str]) -> None:
    """By their bytes, their order and where each ends."""
    request = SendRequest(sender="a", to="b", attachments=[Attachment("x", part) for part in parts])
    usual = SendRequest(sender="a", to="b", attachments=[Attachment("x", part) for part in (LONG, "A")])
    assert (quick_fingerprint(request, "k") == quick_fingerprint(usual, "k")) is (parts == [LONG, "A"])


def test_it_stays_what_it_is() -> None:
    """A retry after an upgrade must match the fingerprint that is stored."""
    request = SendRequest(sender="a", to="b", attachments=[Attachment("x", LONG + "A")], variables={"a": 1.0})
    assert (
        quick_fingerprint(request, "key").hex() == "02e958e0b6ccebde90fa086ddd18147c47c4906bbc7f1ae8f7466902c229241559"
    )
