"""The rules of the library, without any I/O."""

import base64
import json
import pickle
import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mail_appliance import (
    ApiError,
    Attachment,
    ConfigurationError,
    ConnectionFailed,
    Email,
    IdempotencyConflict,
    IdempotencyInProgress,
    InsufficientCredits,
    Message,
    RateLimited,
    ServiceUnavailable,
    WaitTimeout,
    errors,
    models,
)
from mail_appliance.configuration import Configuration, configure
from mail_appliance.planning import (
    Answer,
    Call,
    Moment,
    Pause,
    Raise,
    Return,
    TransportError,
    Waiting,
    batch_request,
    get_call,
    get_request,
    reschedule_request,
    send_call,
    send_request,
)

OPTIONS: dict[str, Any] = {
    "username": None,
    "password": None,
    "token": None,
    "retries": 3,
    "connect_timeout": 5.0,
    "timeout": 30.0,
    "environment": {},
}
MESSAGE = {"from": "a@example.com", "to": "b@example.net", "subject": "Hello", "text": "Hello"}
NOW = 1_800_000_000.0


def configuration(url: str = "https://mail.example.com", **options: Any) -> Configuration:
    """A configuration with a token, unless told otherwise."""
    return configure(url, **(OPTIONS | {"token": "t"} | options))


def moment(chance: float = 0.5, monotonic: float = 0.0) -> Moment:
    """A moment of a test."""
    return Moment(NOW, monotonic, chance)


def answer(status: int, content: Any = None, **headers: str) -> Answer:
    """An answer with JSON."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, json.dumps(content).encode())


def error_answer(status: int, code: str, **headers: str) -> Answer:
    """An error object of the appliance."""
    return answer(status, {"error": "Not now.", "code": code, "request_id": "req_1"}, **headers)


def send(retries: int = 3) -> Call[Any]:
    """A call that sends."""
    return send_call(configuration(retries=retries), MESSAGE, "key-1")


def raised(step: object) -> Exception:
    """The error of a step that raises."""
    assert isinstance(step, Raise)
    return step.error


def api_error(step: object) -> ApiError:
    """The same for an ApiError."""
    error = raised(step)
    assert isinstance(error, ApiError)
    return error


# ---- configuration


def test_credentials_that_are_given_win_over_the_environment() -> None:
    """A given pair is used although the environment has a token, and the other way round."""
    environment = {"MAIL_APPLIANCE_TOKEN": "other", "MAIL_APPLIANCE_USERNAME": "u", "MAIL_APPLIANCE_PASSWORD": "p"}
    pair = configuration(token=None, username="ada", password="pä:ß", environment=environment)
    assert pair.authorization == "Basic YWRhOnDDpDrDnw=="
    assert configuration(token="mine", environment=environment).authorization == "Bearer mine"


def test_the_environment_fills_what_is_missing_and_prefers_its_token() -> None:
    """Empty strings are absent; a token of the environment wins over its pair."""
    pair = {"MAIL_APPLIANCE_URL": "http://h", "MAIL_APPLIANCE_USERNAME": "u", "MAIL_APPLIANCE_PASSWORD": "p"}
    assert configure("", **OPTIONS | {"token": "", "environment": pair}).authorization == "Basic dTpw"
    with_token = {**pair, "MAIL_APPLIANCE_TOKEN": "t"}
    assert configure(None, **OPTIONS | {"environment": with_token}).authorization == "Bearer t"
    completed = configure(None, **OPTIONS | {"username": "ada", "environment": with_token})
    assert completed.authorization == "Basic YWRhOnA="


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        (None, {"token": "t"}, "MAIL_APPLIANCE_URL"),
        ("", {"token": "t"}, "MAIL_APPLIANCE_URL"),
        ("http://h", {}, "MAIL_APPLIANCE_TOKEN"),
        ("http://h", {}, "MAIL_APPLIANCE_USERNAME"),
        ("http://h", {"username": "u"}, "MAIL_APPLIANCE_PASSWORD"),
        ("http://h", {"password": "p"}, "MAIL_APPLIANCE_USERNAME"),
        ("http://h", {"username": "u", "token": "t"}, "token"),
        ("http://h", {"username": "a:b", "password": "p"}, "colon"),
        ("http://h", {"token": "a\r\nX-Evil: 1"}, "MAIL_APPLIANCE_TOKEN"),
        ("http://h", {"token": "t", "retries": -1}, "retries"),
        ("http://h", {"token": "t", "retries": True}, "retries"),
        ("http://h", {"token": "t", "timeout": 0}, "timeout"),
        ("http://h", {"token": "t", "connect_timeout": float("inf")}, "connect_timeout"),
    ],
)
def test_a_mistake_is_named(url: str | None, options: dict[str, Any], named: str) -> None:
    """What is missing or wrong is in the message, with its variable."""
    with pytest.raises(ConfigurationError, match=named):
        configure(url, **OPTIONS | options)


@pytest.mark.parametrize(
    "url",
    [
        "mail.example.com",
        "127.0.0.1:8080",
        "ftp://h",
        "http://",
        "https:///emails",
        "http://ada@h",
        "http://ada:secret@h",
        "http://h/?a=1",
        "http://h?",
        "http://h/#a",
        "http://h:port",
        "http://h:99999",
        "http://[::1",
        "http://h h",
        "http://ada:secret@h h",
        "http://h\n",
        "http://" + "a" * 64 + ".example",
    ],
)
def test_a_url_that_is_refused(url: str) -> None:
    """It is http or https with a host and nothing else but a port and a path; a password in it is not repeated."""
    with pytest.raises(ConfigurationError, match=r"url or MAIL_APPLIANCE_URL") as caught:
        configuration(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("http://h", "http://h", "/emails"),
        ("https://h:443///", "https://h", "/emails"),
        ("http://h:8080/mail/v2/", "http://h:8080", "/mail/v2/emails"),
        ("http://[::1]:8080", "http://[::1]:8080", "/emails"),
        ("https://bücher.example/ä%20b", "https://xn--bcher-kva.example", "/%C3%A4%20b/emails"),
    ],
)
def test_where_requests_go(url: str, origin: str, target: str) -> None:
    """A path stays, trailing slashes do not, a name that is not ASCII becomes A-labels."""
    settings = configuration(url)
    assert (settings.origin, send_request(settings, MESSAGE, "k").target) == (origin, target)


def test_no_secret_is_shown() -> None:
    """A configuration or a request in a log or a traceback has no credentials in it."""
    settings = configuration(token="secret")
    assert "secret" not in repr(settings) + repr(get_request(settings, "msg_1"))


# ---- requests


def test_a_send_request() -> None:
    """Fields that are not given are left out, iterables are lists, attachments are base64."""
    fields = {
        **MESSAGE,
        "to": ("a@example.net", "b@example.net"),
        "cc": None,
        "tags": (tag for tag in "ab"),
        "subject": "Grüße",
        "variables": {"n": 1},
        "attachments": [Attachment("a.txt", b"\xff", content_id="logo"), Attachment("b", b"", "text/plain")],
    }
    request = send_request(configuration(), fields, "key-1")
    assert request.method == "POST"
    assert dict(request.headers) == {
        "Authorization": "Bearer t",
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Idempotency-Key": "key-1",
        "User-Agent": request.headers["User-Agent"],
    }
    assert re.fullmatch(r"mail-appliance-python/1\.2\.0 python/3\.[^ ]+", request.headers["User-Agent"])
    assert json.loads(request.body) == {
        "from": "a@example.com",
        "to": ["a@example.net", "b@example.net"],
        "subject": "Grüße",
        "text": "Hello",
        "tags": ["a", "b"],
        "variables": {"n": 1},
        "attachments": [
            {"filename": "a.txt", "content": "/w==", "content_id": "logo"},
            {"filename": "b", "content": "", "content_type": "text/plain"},
        ],
    }


@pytest.mark.parametrize("size", [98303, 98304, 98305, 1_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_an_attachment_of_several_blocks(size: int, kind: type) -> None:
    """The blocks that are encoded one by one make one base64 text."""
    content = random.Random(size).randbytes(size)
    request = send_request(configuration(), {"attachments": [Attachment('"a"', kind(content))]}, "k")
    (attachment,) = json.loads(request.body)["attachments"]
    assert attachment == {"filename": '"a"', "content": base64.b64encode(content).decode()}


@pytest.mark.parametrize("key", ["", " a", "a ", "ä", "a\n", "a\tb", "a" * 256])
def test_a_key_that_is_refused(key: str) -> None:
    """A key is 1 to 255 printable ASCII characters without a space at either end."""
    with pytest.raises(ConfigurationError, match="idempotency_key") as caught:
        send_request(configuration(), MESSAGE, key)
    assert caught.value.idempotency_key == key


@pytest.mark.parametrize("key", ["a", "a b", "!~", "a" * 255])
def test_a_key_that_is_sent_as_it_is(key: str) -> None:
    """Up to 255 characters."""
    assert send_request(configuration(), MESSAGE, key).headers["Idempotency-Key"] == key


@pytest.mark.parametrize(
    "fields",
    [
        {"variables": {"a": float("nan")}},
        {"variables": {"a": object()}},
        {"subject": "\ud800"},
        {"to": 5},
        {"attachments": 5},
        {"attachments": [{"filename": "a"}]},
        {"attachments": [Attachment("a", "text")]},  # type: ignore[arg-type]
    ],
)
def test_a_message_that_is_not_json(fields: dict[str, Any]) -> None:
    """What cannot be written as JSON is the caller's mistake, found before any request."""
    with pytest.raises(ConfigurationError):
        send_request(configuration(), MESSAGE | fields, "k")


@pytest.mark.parametrize(
    ("emails", "named"),
    [
        ([Email(from_="a", to="b"), {"from": "a"}], r"emails\[1\] must be an Email, not dict"),
        ([Email(from_="a", to="b", attachments=[b"x"])], r"emails\[0\]: an attachment must be"),  # type: ignore[list-item]
        ([Email(from_="a", to="b", scheduled_at=datetime(2030, 1, 1))], r"emails\[0\]: scheduled_at has no time zone"),
    ],
)
def test_a_batch_that_cannot_be_written_names_the_message(emails: list[Any], named: str) -> None:
    """The error has the key, and nothing was sent."""
    with pytest.raises(ConfigurationError, match=named) as raised:
        batch_request(configuration(), emails, None, "key-1")
    assert raised.value.idempotency_key == "key-1"


def test_a_time_to_schedule_for_has_a_time_zone() -> None:
    """One without would be sent at another time than the caller means."""
    with pytest.raises(ConfigurationError, match="time zone"):
        reschedule_request(configuration(), "msg_1", datetime(2030, 1, 1))
    body = reschedule_request(configuration(), "msg_1", datetime(2030, 1, 1, tzinfo=UTC)).body
    assert body == b'{"scheduled_at":"2030-01-01T00:00:00+00:00"}'


def test_a_get_request_encodes_the_id() -> None:
    """An id stays one segment of the path; an empty one is refused."""
    assert get_request(configuration(), "a/b?c d%é").target == "/emails/a%2Fb%3Fc%20d%25%C3%A9"
    with pytest.raises(ConfigurationError):
        get_request(configuration(), "")


def test_attachments_from_files(tmp_path: Path) -> None:
    """The name of a path is its last part unless given; a stream is read once, and must be binary."""
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF")
    assert Attachment.from_path(path) == Attachment("report.pdf", b"%PDF")
    assert Attachment.from_path(str(path), "b.pdf", content_type="x/y").filename == "b.pdf"
    with pytest.raises(ConfigurationError, match=r"missing\.pdf cannot be read"):
        Attachment.from_path(tmp_path / "missing.pdf")
    with path.open("rb") as stream:
        assert Attachment.from_stream(stream, "c.pdf", content_id="c").content == b"%PDF"
        assert stream.read() == b""
    with path.open() as text:
        attachment = Attachment.from_stream(text, "c.pdf")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"c\.pdf"):
        send_request(configuration(), MESSAGE | {"attachments": [attachment]}, "k")


# ---- what follows an attempt


def test_success() -> None:
    """A 2xx with an object that has an id is the result, whatever else it has."""
    step = send().after(answer(202, {"id": "msg_1", "status": "odd", "new": 1}, idempotent_replayed="true"), moment())
    assert isinstance(step, Return)
    result = step.result
    assert (result.id, result.status, result.to, result.replayed, result.idempotency_key) == (
        "msg_1",
        "odd",
        (),
        True,
        "key-1",
    )


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"id":1}', b'{"id":"m"', b"\xff", b"[" * 100_000, b"9" * 5000]
)
def test_a_success_that_cannot_be_read(body: bytes) -> None:
    """A 2xx that is not an object with an id is an ApiError without a code, and is not retried."""
    error = api_error(send().after(Answer(202, {}, body), moment()))
    assert (type(error), error.status, error.code) == (ApiError, 202, None)


@pytest.mark.parametrize(("code", "kind"), errors.BY_CODE.items())
def test_each_code_has_its_class(code: str, kind: type[ApiError]) -> None:
    """The error has all that the answer said, and the key."""
    error = api_error(send(retries=0).after(error_answer(418, code, retry_after="7"), moment()))
    assert type(error) is kind
    assert (error.status, error.code, error.message, str(error)) == (418, code, "Not now.", "Not now.")
    assert (error.request_id, error.retry_after, error.idempotency_key) == ("req_1", 7.0, "key-1")


def test_an_answer_that_is_not_the_appliances() -> None:
    """Its message has the status and the beginning of the text; the request id comes from the header."""
    page = b"<html>\n  <h1>Bad gateway</h1>" + b"x" * 10_000
    error = api_error(send().after(Answer(502, {"x-request-id": "req_9"}, page), moment()))
    assert (type(error), error.code, error.request_id) == (ApiError, None, "req_9")
    assert error.message.startswith("HTTP status 502: <html> <h1>Bad gateway</h1>xxx")
    assert len(error.message) < 300


def test_an_unknown_code_is_kept() -> None:
    """It has the base class."""
    error = api_error(send().after(error_answer(400, "from_the_future"), moment()))
    assert (type(error), error.code) == (ApiError, "from_the_future")


@pytest.mark.parametrize("status", [300, 302, 400, 401, 402, 403, 404, 409, 413, 500, 502, 504])
def test_statuses_that_are_not_retried(status: int) -> None:
    """Neither redirects nor errors that would come again."""
    assert api_error(send().after(error_answer(status, "conflict"), moment())).status == status


def test_a_conflict_of_keys_is_not_retried() -> None:
    """Of the 409s, only the one that is in progress is."""
    assert isinstance(raised(send().after(error_answer(409, "idempotency_conflict"), moment())), IdempotencyConflict)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (error_answer(429, "rate_limited"), RateLimited),
        (error_answer(503, "service_unavailable"), ServiceUnavailable),
        (error_answer(409, "idempotency_in_progress"), IdempotencyInProgress),
        (Answer(503, {}, b"<html>"), ApiError),
        (TransportError("reset"), ConnectionFailed),
    ],
)
def test_retries_and_their_pauses(outcome: Answer | TransportError, kind: type[Exception]) -> None:
    """Three retries, each after a random time up to twice the last one's, and then the error."""
    call = send()
    pauses = [call.after(outcome, moment(chance)) for chance in (1.0, 1.0, 0.25)]
    assert pauses == [Pause(0.5), Pause(1.0), Pause(0.5)]
    error = raised(call.after(outcome, moment()))
    assert type(error) is kind
    assert isinstance(error, errors.MailApplianceError)
    assert error.idempotency_key == "key-1"


def test_no_pause_without_a_header_is_longer_than_eight_seconds() -> None:
    """However many retries there are."""
    call = send(retries=2000)
    pauses = [call.after(TransportError("lost"), moment(1.0)) for _ in range(2000)]
    assert max(step.seconds for step in pauses if isinstance(step, Pause)) == 8.0
    assert isinstance(call.after(TransportError("lost"), moment()), Raise)


def test_no_retry_when_none_is_allowed_or_none_can_help() -> None:
    """With retries=0, and for a certificate that does not verify."""
    assert isinstance(send(retries=0).after(TransportError("lost"), moment()), Raise)
    assert isinstance(send().after(TransportError("certificate", retryable=False), moment()), Raise)


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        ("1", 1.05),
        (" 30 ", 31.5),
        ("0", 0.0),
        ("Fri, 15 Jan 2027 08:00:10 GMT", 10.5),
        ("Friday, 15-Jan-27 08:00:10 GMT", 10.5),
        ("Fri Jan 15 08:00:10 2027", 10.5),
        ("Fri, 15 Jan 2021 08:00:10 GMT", 0.0),
        ("soon", 0.25),
        ("-5", 0.25),
        ("1.5", 0.25),
        ("", 0.25),
        ("Fri, 99 Jan 2027 08:00:10 GMT", 0.25),
        ("٣", 0.25),
    ],
)
def test_retry_after(header: str, pause: float) -> None:
    """Seconds or a date, and up to a tenth more; what cannot be read is as if it were not there."""
    step = send().after(error_answer(429, "rate_limited", retry_after=header), moment(0.5))
    assert isinstance(step, Pause)
    assert step.seconds == pytest.approx(pause)


@pytest.mark.parametrize("header", ["31", "3600", "Fri, 15 Jan 2027 09:00:00 GMT"])
def test_a_long_retry_after_is_for_the_caller(header: str) -> None:
    """More than 30 seconds: the error comes at once, and says how long."""
    error = api_error(send().after(error_answer(429, "rate_limited", retry_after=header), moment()))
    assert error.retry_after == {"31": 31.0}.get(header, 3600.0)


# ---- waiting


def seen(status: str) -> Answer:
    """A message of that status."""
    return answer(200, {"id": "msg_1", "status": status})


def waiting(timeout: float) -> Waiting:
    """From a monotonic time of 0."""
    return Waiting("msg_1", configuration=configuration(), timeout=timeout, now=0.0)


def test_the_pauses_of_waiting_grow_and_do_not_go_past_the_end() -> None:
    """0.5 s, half as much again each time, at most 10 s; the last ends with the time, and a last look follows."""
    wait, now, pauses = waiting(60.0), 0.0, []
    for _ in range(100):
        step = wait.after(seen("queued"), moment(monotonic=now))
        if not isinstance(step, Pause):
            break
        pauses.append(step.seconds)
        now += step.seconds
    assert pauses[:4] == [0.5, 0.75, 1.125, 1.6875]
    assert max(pauses) == 10.0
    assert sum(pauses) == pytest.approx(60.0)
    error = raised(step)
    assert isinstance(error, WaitTimeout)
    assert error.last_message is not None
    assert error.last_message.status == "queued"


@pytest.mark.parametrize("status", ["delivered", "partial", "failed"])
def test_waiting_ends_with_a_final_status(status: str) -> None:
    """Also when it is seen at the very end."""
    step = waiting(5.0).after(seen(status), moment(monotonic=9.0))
    assert isinstance(step, Return)
    assert step.result.status == status


def test_each_poll_has_its_own_retries() -> None:
    """A failure now and then does not use them up."""
    wait = waiting(1000.0)
    for _ in range(20):
        assert isinstance(wait.after(TransportError("lost"), moment()), Pause)
        assert isinstance(wait.after(error_answer(503, "temporary_failure"), moment()), Pause)
        assert isinstance(wait.after(seen("queued"), moment()), Pause)
    for _ in range(3):
        assert isinstance(wait.after(TransportError("lost"), moment()), Pause)
    assert isinstance(raised(wait.after(TransportError("lost"), moment())), ConnectionFailed)


def test_an_error_that_is_not_retried_ends_waiting() -> None:
    """A message that is not there will not come."""
    assert api_error(waiting(60.0).after(error_answer(404, "not_found"), moment())).code == "not_found"


def test_waiting_that_is_over_says_so_whatever_the_last_attempt_saw() -> None:
    """Neither a pause that would go past the end nor an attempt that the end has cut short is a failure of its own."""
    late = waiting(5.0).after(error_answer(429, "rate_limited", retry_after="20"), moment(monotonic=1.0))
    cut = waiting(5.0).after(TransportError("timed out"), moment(monotonic=5.1))
    for step in (late, cut):
        error = raised(step)
        assert isinstance(error, WaitTimeout)
        assert error.last_message is None


def test_the_attempts_of_waiting_end_with_it() -> None:
    """Each has its usual time, or the rest of the total, but at least a second."""
    wait = waiting(60.0)
    assert [wait.timeout(now) for now in (0.0, 50.0, 59.5, 70.0)] == [30.0, 10.0, 1.0, 1.0]


# ---- results and errors


def test_a_message_is_read_leniently() -> None:
    """Unknown fields are ignored, missing ones and those of another type are None, times are aware."""
    content = {
        "id": "msg_1",
        "recipients": [
            {"id": "rcp_1", "status": "new", "last_smtp_code": None, "delivered_at": "2026-11-16T12:00:00.123456789Z"},
            {"last_smtp_code": "x", "attempt_count": True, "bounced_at": "yesterday"},
            7,
        ],
        "created_at": "2026-11-16T13:00:00+01:00",
        "subject": 5,
        "new": {},
    }
    step = get_call(configuration(), "msg_1").after(answer(200, content), moment())
    assert isinstance(step, Return)
    message: Message = step.result
    first, second = message.recipients
    assert message.created_at is not None
    assert message.created_at.timestamp() == 1794830400
    assert (message.subject, message.status, message.is_final) == (None, None, False)
    assert first.delivered_at is not None
    assert (first.status, first.delivered_at.isoformat()) == ("new", "2026-11-16T12:00:00.123456+00:00")
    assert (second.last_smtp_code, second.attempt_count, second.bounced_at) == (None, None, None)


def test_a_time_without_an_offset_is_utc() -> None:
    """So that all times can be compared."""
    message = models.message({"id": "m", "created_at": "2026-11-16T12:00:00"})
    assert message is not None
    assert message.created_at is not None
    assert message.created_at.isoformat() == "2026-11-16T12:00:00+00:00"


def test_errors_can_be_pickled() -> None:
    """Task queues send them between processes."""
    error = InsufficientCredits("None left.", status=402, code="insufficient_credits", idempotency_key="k")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    timeout = WaitTimeout("late", last_message=models.message({"id": "m"}))
    assert pickle.loads(pickle.dumps(timeout)).last_message == timeout.last_message


def test_results_are_frozen() -> None:
    """And can be changed by copying."""
    message = models.message({"id": "m", "status": "queued"})
    assert message is not None
    with pytest.raises(AttributeError):
        message.status = "failed"  # type: ignore[misc]
    assert replace(message, status="failed").is_final
