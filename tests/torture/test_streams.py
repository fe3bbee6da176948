"""Some of the changed inputs of `sh packaging/torture`, and that its checks can tell a reader that reads otherwise."""

from typing import Any

import pytest

from appliance.deliver.smtp import protocol as reply
from appliance.submission import content
from appliance.web import fast_post, http1
from appliance.webhook import fast_answer
from appliance.webhook import http as webhook_http
from tests.torture import streams

INPUTS = 200


@pytest.mark.parametrize("name", streams.STREAMS)
def test_changed_inputs_are_refused_or_read_as_others_read_them(name: str) -> None:
    """Some of each kind."""
    wrong, _, _ = streams.task(name, 20_261_117, 0, INPUTS)
    assert wrong == []


def test_an_input_can_be_made_again() -> None:
    """By its number."""
    for stream in streams.STREAMS.values():
        assert [stream.input(number) for number in range(20)] == [stream.input(number) for number in range(20)]


def _one_more(request: fast_post.QuickRequest | None) -> Any:
    return request and request._replace(body=request.body + b" ")


def _moved(answer: fast_answer.FastAnswer | None) -> Any:
    return answer and answer._replace(status=answer.status + 1)


def test_a_reader_that_reads_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end of DATA that is none, another body, another status, another code."""
    monkeypatch.setattr(content, "END", b"\n.\r\n")
    read = fast_post.read_request
    monkeypatch.setattr(http1, "read_request", lambda data: _one_more(read(data)))
    answered = fast_answer.read_fast
    monkeypatch.setattr(webhook_http, "read_fast", lambda data: _moved(answered(data)))
    code = reply._code
    monkeypatch.setattr(reply, "_code", lambda line: code(line) + 1)
    for name in ("submission", "feedback", "http", "answers", "replies"):
        assert streams.task(name, 4711, 0, INPUTS)[0], name
