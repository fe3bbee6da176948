"""Texts that differ by recipient: each placeholder once, no value expanded again, and bounds on the work."""

import re

import pytest

from appliance.errors import Code, Refused
from appliance.message.batch import Series
from appliance.message.schema import SendRequest
from appliance.web.doors.frame import send_request
from appliance.web.doors.personal import PersonalText, check_placeholders, finder, one_for_each


def text(pattern: str, template: str) -> PersonalText:
    return PersonalText(template, re.finditer(pattern, template))


def request(subject: str = "Hi") -> SendRequest:
    return send_request({"from": "a@example.com", "to": "b@example.net", "subject": subject, "text": "Hi"})


def test_placeholders_are_filled_once() -> None:
    values = {"%a%": "%b%", "%b%": "B"}
    assert text("%.%", "%a%-%b%-%a%").filled(values.__getitem__) == "%b%-B-%b%"
    assert text("%.%", "plain").filled(values.__getitem__) == "plain"
    assert text("%.%", "").filled(values.__getitem__) == ""
    assert text("%.%", "%a%%b%").placeholders == 2


def test_a_filled_text_is_bounded() -> None:
    with pytest.raises(Refused) as caught:
        text("x", "x" * 11).filled(lambda name: "y" * 1_048_576)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


def test_placeholders_are_bounded() -> None:
    assert text("x", "x" * 1_000).placeholders == 1_000
    with pytest.raises(Refused, match="more than 1000 placeholders"):
        text("x", "x" * 1_001)
    texts = [text("x", "x" * 600)] * 2
    check_placeholders(texts, more=200)
    with pytest.raises(Refused, match="more than 1199 placeholders"):
        check_placeholders(texts, more=199)


def keys_in(keys: list[str], template: str) -> list[str]:
    return [match[0] for match in finder(keys, len(template))(template)]


def test_the_longest_key_at_a_place_counts() -> None:
    assert keys_in(["-a-", "-a-b-", "."], "-a-b-.-a-") == ["-a-b-", ".", "-a-"]
    assert keys_in([], "text") == []
    assert keys_in(["(", ".*"], "a.*(b") == [".*", "("]


@pytest.mark.parametrize("before", [4_090, 4_095, 4_096, 4_097, 8_191])
def test_a_key_is_found_across_the_windows_of_a_search(before: int) -> None:
    """Each place once, also where a shorter key would fit into the window."""
    template = "." * before + "-name-long-" + "." * 5_000 + "-name-"
    assert keys_in(["-name-", "-name-long-"], template) == ["-name-long-", "-name-"]


def test_a_search_is_bounded() -> None:
    with pytest.raises(Refused, match="too many substitutions"):
        finder([str(number) for number in range(100)], 500_001)


def test_one_recipient_is_a_plain_request() -> None:
    assert isinstance(one_for_each(1, lambda index: request()), SendRequest)


def test_every_message_is_checked_before_the_first() -> None:
    series = one_for_each(3, lambda index: request(f"Hi {index}"))
    assert isinstance(series, Series)
    assert [item.subject for item in series.part(range(3)).items if isinstance(item, SendRequest)] == [
        "Hi 0",
        "Hi 1",
        "Hi 2",
    ]
    with pytest.raises(Refused, match=r"emails\[2\].subject: "):
        one_for_each(3, lambda index: request("x" * (501 if index == 2 else 1)))


def test_all_messages_together_are_bounded() -> None:
    large = request("Hi")
    large.text = "x" * 2**20
    with pytest.raises(Refused) as caught:
        one_for_each(1_000, lambda index: large)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE
