"""The request log: no secrets, a bounded memory, and samples of what is refused in masses."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.intake import request_log
from appliance.intake.limits import FreeSpace
from appliance.intake.request_log import REFUSED_AT_ONCE, RequestLog, SubmittedRequest, shortened, shown_body
from appliance.message.request import decode
from appliance.model.accounts import Caller, CredentialKind
from appliance.model.dashboard import LoggedRequest, RequestFilter
from appliance.model.webhooks import EXCERPT_BYTES
from appliance.store import open_store
from appliance.times import MINUTE
from tests.cpu_time import cpu_seconds
from tests.store.samples import Clock


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"to": "a@b.example", "subject": "Hi"}, {"to": "a@b.example", "subject": "Hi"}),
        ({"password": "hunter2", "n": 1}, {"password": "[removed]", "n": 1}),
        (
            {"variables": {"greeting": ["hunter2"]}, "code": "hunter2", "PIN": 1, "postcode": "1"},
            {"variables": {"greeting": "[removed]"}, "code": "[removed]", "PIN": "[removed]", "postcode": "1"},
        ),
        ({"headers": {"Authorization": "hunter2"}}, {"headers": {"Authorization": "[removed]"}}),
        ({"text": "hunter2", "html": ["hunter2"]}, {"text": "(7 characters)", "html": "[removed]"}),
        ({"subject": "key ma_live_hunter2 and whsec_hunter2+/="}, {"subject": "key [removed] and [removed]"}),
        ({"subject": "eyJhunter2.eyJhunter2.hunter2!"}, {"subject": "[removed]!"}),
        ({"subject": "curl -H 'Basic aHVudGVyMjpodW50ZXIy'"}, {"subject": "curl -H 'Basic [removed]'"}),
        (
            {"subject": "https://b.example/reset?id=7&reset_token=hunter2 https://b.example/#token=hunter2"},
            {"subject": "https://b.example/reset?id=7&reset_token=[removed] https://b.example/#token=[removed]"},
        ),
        (
            {"attachments": [{"filename": "a.txt", "content": "aHVudGVyMg=="}]},
            {"attachments": [{"filename": "a.txt", "content": "[removed]"}]},
        ),
        ({"subject": "x" * 5000}, {"subject": "x" * 400 + "… (5,000 characters)"}),
        ({"to": ["a@b.example"] * 60}, {"to": ["a@b.example"] * 50}),
    ],
)
def test_a_body_is_shown_without_secrets(body: object, shown: object) -> None:
    assert json.loads(shown_body(json.dumps(body).encode())) == shown
    assert "hunter2" not in shown_body(json.dumps(body, indent=2).encode())


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"to": "a@b.example", "subj', '{"to": "a@b.example", "subj'),
        (b'{"to": "a@b.example", "password": "hunter2', '{"to": "a@b.example", "[removed]'),
        (b'{"attachments": [{"content": "aHVudGVyMg', '{"[removed]'),
        (b'{"subject": "Hi", "text": "hunter2', '{"subject": "Hi", [removed]'),
        (b'{"pass\\u0077ord": "hunter2', '{"pass[removed]'),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b"[" * 20_000, "[" * EXCERPT_BYTES),
    ],
)
def test_a_body_that_is_not_json_is_shown_up_to_the_first_secret(body: bytes, shown: str) -> None:
    assert shown_body(body) == shown


@pytest.mark.parametrize("body", [b"=?" + b"key" * 4000, b"=" + b"?key" * 3000, b"eyJ" * 2700, b"eyJ.eyJ" * 1200])
def test_no_body_holds_the_interpreter(body: bytes) -> None:
    assert cpu_seconds(lambda: shown_body(body)) < 0.005
    assert cpu_seconds(lambda: shown_body(json.dumps({"subject": [body[:400].decode()] * 50}).encode())) < 0.005


def test_a_body_is_cut_at_two_kilobytes() -> None:
    body = json.dumps({"metadata": {f"name{number}": "ä" * 300 for number in range(30)}}).encode()
    assert len(shown_body(body).encode()) in range(EXCERPT_BYTES - 3, EXCERPT_BYTES + 1)


def test_a_large_request_waits_without_its_texts() -> None:
    body = {"from": "a@b.example", "to": "c@d.example", "subject": "Hi", "html": "y" * 100_000}
    body["attachments"] = [{"filename": "f", "content": "QUFB" * 10_000}]  # type: ignore[assignment]  # a list
    waiting = shortened(decode(json.dumps(body).encode()))
    assert len(waiting) < 1_000
    shown = json.loads(shown_body(waiting))
    assert (shown["from"], shown["attachments"]) == ("a@b.example", [{"filename": "f", "content": "[removed]"}])


# ---- the log


class Logged:
    def __init__(self, log: RequestLog, clock: Clock) -> None:
        self.log, self.clock = log, clock

    async def written(self, account_id: str = "acc_1") -> list[LoggedRequest]:
        await self.log.write()
        results, _ = await self.log.store.request_pages.search(account_id, RequestFilter(), 10_000)
        return [request for _, request in results]


@pytest.fixture
async def logged(tmp_path: Path) -> AsyncIterator[Logged]:
    clock = Clock()
    env = Environment(now=clock)
    async with open_store(tmp_path, env, inline=True) as store:
        yield Logged(RequestLog(store, env, FreeSpace(tmp_path, 0, 0, env)), clock)


def submission(account_id: str = "acc_1", source: str = "api", body: bytes | str = b"{}") -> SubmittedRequest:
    caller = Caller(account_id, CredentialKind.KEY, "key:key_1", True, False, False, frozenset())
    return SubmittedRequest(caller, "req_1", source, "POST /emails", "192.0.2.1", 2, body)


async def test_a_request_is_logged_with_its_result(logged: Logged) -> None:
    logged.log.accepted(submission(body=b'{"to":"a@b.example"}'), 202, "msg_1")
    logged.log.failed(submission(), Refused(Code.FORBIDDEN, "from: not yours"))
    logged.log.failed(submission(source="smtp"), Refused(Code.FORBIDDEN, "from: not yours"))
    logged.log.failed(submission(), RuntimeError("secret insides"))
    bug, smtp, refused, accepted = await logged.written()
    assert (accepted.status, accepted.message_id, accepted.key) == (202, "msg_1", "key_1")
    assert (accepted.body, accepted.client, accepted.error) == ('{"to":"a@b.example"}', "192.0.2.1", None)
    assert (refused.status, refused.code, refused.error) == (403, "forbidden", "from: not yours")
    assert (smtp.status, smtp.code) == (550, "forbidden")
    assert (bug.status, bug.error) == (500, "Internal error. The server's log has the details.")
    assert len(await logged.written()) == 4  # nothing twice


async def test_requests_refused_in_masses_are_sampled(logged: Logged) -> None:
    for _ in range(1_000):
        logged.log.failed(submission(), Refused(Code.INVALID_REQUEST, "no"))
    logged.log.accepted(submission(), 202, "msg_1")
    assert len(await logged.written()) == REFUSED_AT_ONCE + 1
    logged.clock.now += MINUTE
    for _ in range(1_000):
        logged.log.failed(submission(), Refused(Code.INVALID_REQUEST, "no"))
    logged.log.failed(submission("acc_2"), Refused(Code.INVALID_REQUEST, "no"))
    assert len(await logged.written()) == REFUSED_AT_ONCE + 11
    assert len(await logged.written("acc_2")) == 1


async def test_memory_is_bounded(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account in a burst leaves room for others; beyond the bytes, requests lose their bodies."""
    monkeypatch.setattr(request_log, "ACCOUNT_REQUESTS_WAITING", 3)
    monkeypatch.setattr(request_log, "REQUESTS_WAITING", 5)
    monkeypatch.setattr(request_log, "BODY_BYTES_WAITING", 5)
    for account_id in ("acc_1", "acc_2"):
        for _ in range(5):
            logged.log.accepted(submission(account_id), 202, "msg_1")
    assert [request.body for request in await logged.written("acc_1")] == ["", "{}", "{}"]
    assert len(await logged.written("acc_2")) == 2
    logged.log.accepted(submission(), 202, "msg_1")
    assert len(await logged.written()) == 4


async def test_nothing_is_written_on_a_full_disk(logged: Logged) -> None:
    logged.log.free_space.min_bytes = 2**62
    logged.log.accepted(submission(), 202, "msg_1")
    assert await logged.written() == []
