"""Estimates of cost: what is called cheap is cheap, by the clock, and what is dear is called so."""

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from appliance.errors import Refused
from appliance.message.addresses import cost_of_address, parse
from appliance.message.compose import compose, draft
from appliance.message.request import cost_of_request, decode, fingerprint
from appliance.message.submitted import cost_of_submission, read, write
from appliance.message.template import cost_of_template
from appliance.model.mail import StoredTemplate
from tests.cpu_time import cpu_seconds
from tests.e2e.hostile_inputs import ARABIC, CYRILLIC
from tests.message.samples import body

ON_LOOP = 2_000  # microseconds
LONGEST = 5_000  # microseconds that what is estimated so may really take


def seconds(work: Callable[[int], object]) -> float:
    """The CPU time of it, each try told its number so that nothing comes from a cache."""
    numbers = count()

    def attempt() -> None:
        with suppress(Refused):
            work(next(numbers))

    return cpu_seconds(attempt)


def whole(data: bytes, template: StoredTemplate | None = None) -> None:
    request = decode(data)
    fingerprint(request)
    compose(draft(request, template), message_id="a@example.com", date_seconds=0, text_from_html=True)


CHEAP: dict[str, Callable[[int], dict[str, Any]]] = {
    "text in lines": lambda _: {"text": "\n" * 20_000},
    "text outside ASCII": lambda _: {"text": "\u00e9 \n" * 8_000},
    "HTML": lambda _: {"html": "<" * 40_000},
    "HTML alone": lambda _: {"text": None, "html": "<a href='https://x.example'>&lt;" * 200},
    "headers": lambda _: {"headers": {f"X-{each}": "a" * 180 for each in range(10)}},
    "long words": lambda _: {"headers": {"X-A": "a" * 900, "X-B": "=?" * 200}},
    "file names": lambda _: {"attachments": [{"filename": "\u00e9" * 120 + str(n), "content": ""} for n in range(20)]},
    "IDN": lambda number: {"to": [f"a@{ARABIC * 40}{number}{each}.{ARABIC * 40}.example" for each in range(3)]},
    "names": lambda number: {"to": ['"' + "\\\u00e9" * 250 + f'" <a{number}{each}@example.net>' for each in range(3)]},
}


@pytest.mark.parametrize("name", CHEAP)
def test_what_is_called_cheap_is_cheap(name: str) -> None:
    def work(number: int) -> None:
        whole(json.dumps(body(**CHEAP[name](number)), ensure_ascii=False).encode())

    data = json.dumps(body(**CHEAP[name](99)), ensure_ascii=False).encode()
    assert cost_of_request(decode(data), len(data)) <= ON_LOOP
    assert seconds(work) * 1e6 <= LONGEST


DEAR: dict[str, dict[str, Any]] = {
    "a large body": {"text": "x" * 50_000},
    "HTML alone": {"text": None, "html": "<b>a" * 500},
    "many IDN addresses": {"to": [f"a@{CYRILLIC}{each}.example" for each in range(6)]},
    "many A-labels": {"cc": [f"a@xn--{each}.example" for each in range(6)]},
    "long names": {"to": [f"{'x' * 250} <a{each}@example.net>" for each in range(8)]},
    "long headers": {"headers": {f"X-{each}": "a" * 900 for each in range(3)}},
}


@pytest.mark.parametrize("name", DEAR)
def test_what_is_dear_is_called_so(name: str) -> None:
    data = json.dumps(body(**DEAR[name]), ensure_ascii=False).encode()
    assert cost_of_request(decode(data), len(data)) > ON_LOOP


def test_a_name_outside_ascii_is_not_dear() -> None:
    assert cost_of_address("J\u00fcrgen <a@example.net>") < 100
    assert cost_of_address("a@m\u00fcller.example") > 300
    assert cost_of_address("A <a@xn--mller-kva.example>") > 300


@pytest.mark.parametrize(
    ("template", "value"),
    [
        (StoredTemplate("t", 1, None, None, "{{a}}" * 1_000, 0, 0), "<" * 100),
        (StoredTemplate("t", 1, None, "{{a}}" * 1_000, None, 0, 0), "x" * 100),
        (StoredTemplate("t", 1, None, "{{a}}" * 3_000, None, 0, 0), "x"),
        (StoredTemplate("t", 1, None, "x" * 60_000, None, 0, 0), "x"),
    ],
)
def test_a_template_costs_what_it_becomes(template: StoredTemplate, value: str) -> None:
    assert cost_of_template(template, {"a": value}) > ON_LOOP
    assert cost_of_template(StoredTemplate("t", 1, None, "Hello {{a}}", "<b>{{a}}</b>", 0, 0), {"a": value}) < 200


def test_a_submission_that_is_called_cheap_is_cheap() -> None:
    header = b"From: a@example.com\r\nIdempotency-Key: k\r\n"
    for data in (
        header + b"x: y\r\n" * 450 + b"\r\n",
        header + b"\r\n" + b"\r\n" * 1_500,
        header + b"\r\n" + b"x" * 900,
        header + b"Subject:" + b" =?utf-8?q?=C3=A4?=\r\n" * 240 + b"\r\n",
        header + b"X-PM-Tag: =?utf-8?q?=C3=A4?=\r\n" * 240 + b"\r\n",
    ):
        assert cost_of_submission(data, ("b@example.net",)) <= ON_LOOP

        def work(_: int, data: bytes = data) -> None:
            write(read("a@example.com", ["b@example.net"], data), message_id="msg_1", now_seconds=0, hostname="h")

        assert seconds(work) * 1e6 <= LONGEST
    assert cost_of_submission(header + b"x: y\r\n" * 600 + b"\r\n", ("b@example.net",)) > ON_LOOP
    assert cost_of_submission(header + b"x: y\r\n" * 600, ("b@example.net",)) > ON_LOOP
    words = b"X-Mailgun-Tag: " + b"=?utf-8?q?a?= " * 40 + b"\r\n"
    assert cost_of_submission(header + words * 20 + b"\r\n", ("b@example.net",)) > ON_LOOP
    assert cost_of_submission(header, [f"a@{CYRILLIC}{each}.example" for each in range(6)]) > ON_LOOP


def test_reading_an_address_is_linear() -> None:
    def name(spaces: int) -> Callable[[int], object]:
        return lambda number: parse("x" + " " * spaces + f"<{number}", "to")

    assert seconds(name(900)) <= 20 * seconds(name(90)) + 0.001
