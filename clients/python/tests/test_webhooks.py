"""Signatures of webhooks, with vectors that are made here, independently of the library."""

import hashlib
import hmac
import time

import pytest

from mail_appliance import ConfigurationError, SignatureInvalid, verify

SECRET = "whsec_c2VjcmV0"
BODY = (
    b'{"id":"evt_1","type":"email.bounced","created_at":"2026-11-16T12:00:00.5Z","new":1,'
    b'"data":{"email_id":"msg_1","to":"ada@example.net","smtp_code":550,"more":[]}}'
)
NOW = 1794830400


def signature(body: bytes = BODY, secret: str = SECRET, seconds: int | str = NOW) -> str:
    """The `v1` of a body."""
    return hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()


def header(*signatures: str, seconds: int | str = NOW) -> str:
    """A header as the appliance writes it."""
    return ",".join([f"t={seconds}", *(f"v1={signature}" for signature in signatures)])


def test_an_event() -> None:
    """Known fields are typed, unknown ones ignored, missing ones None."""
    event = verify(BODY, header(signature()), SECRET, now=NOW)
    assert (event.id, event.type) == ("evt_1", "email.bounced")
    assert event.created_at is not None
    assert event.created_at.timestamp() == NOW + 0.5
    data = event.data
    assert (data.email_id, data.to, data.smtp_code, data.smtp_response, data.test) == (
        "msg_1",
        "ada@example.net",
        550,
        None,
        None,
    )


def test_the_current_time_is_the_default() -> None:
    """With five minutes of tolerance."""
    now = int(time.time())
    assert verify(BODY, header(signature(seconds=now - 200), seconds=now - 200), [SECRET]).id == "evt_1"
    with pytest.raises(SignatureInvalid, match="300 s"):
        verify(BODY, header(signature(seconds=now - 400), seconds=now - 400), [SECRET])


@pytest.mark.parametrize(("offset", "valid"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_tolerance_in_both_directions(offset: int, valid: bool) -> None:
    """An old request may be a replay, and one from the future has a wrong clock."""
    if valid:
        assert verify(BODY, header(signature()), SECRET, now=NOW + offset)
    else:
        with pytest.raises(SignatureInvalid):
            verify(BODY, header(signature()), SECRET, now=NOW + offset)


def test_any_secret_and_any_signature_may_match() -> None:
    """While a secret is rotated there are two; unknown parts and the order do not matter."""
    good, bad = signature(), "0" * 64
    for value in (header(bad, good), header(good, bad), f"v1={good},v0=x, t={NOW},y"):
        assert verify(BODY, value, iter(["whsec_new", SECRET]), now=NOW).id == "evt_1"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        f"t={NOW}",
        f"v1={signature()}",
        f"t={NOW},t={NOW},v1={signature()}",
        f"t=,v1={signature(seconds='')}",
        f"t=+{NOW},v1={signature(seconds=f'+{NOW}')}",
        f"t=١,v1={signature(seconds='١')}",
        header(signature()).replace(",", ";"),
        header(signature()[:-1]),
        header(signature() + "0"),
        header("ä\udcff"),
        header(signature(secret="whsec_other")),
        header(signature(secret=SECRET.removeprefix("whsec_"))),
        header(signature(body=BODY + b" ")),
        header(signature(), seconds=NOW + 1),
    ],
)
def test_what_must_not_be_trusted(value: str | None) -> None:
    """A header that is missing, malformed, or signed otherwise."""
    with pytest.raises(SignatureInvalid):
        verify(BODY, value, SECRET, now=NOW)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"id":1,"type":"t"}', b'{"id":"e","type":"t","data":[]}']
)
def test_a_signed_body_that_is_not_an_event(body: bytes) -> None:
    """It is refused, whatever is wrong with it."""
    with pytest.raises(SignatureInvalid, match="not an event"):
        verify(body, header(signature(body)), SECRET, now=NOW)


@pytest.mark.parametrize("secrets", ["", [], [""], [SECRET, ""], None, [None], [SECRET, None]])
def test_secrets_that_are_missing(secrets: list[str | None] | str | None) -> None:
    """An empty secret would let anyone sign."""
    with pytest.raises(ConfigurationError):
        verify(BODY, header(signature(secret="")), secrets, now=NOW)
