"""Complaints in the shapes of the providers: type, source, time, and what leads to our recipient."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.arf import RETURN_PATHS, Complaint, FeedbackType, read_complaint

CORPUS = Path(__file__).parent / "corpus" / "arf"
DSN = Path(__file__).parent / "corpus" / "dsn"
OURS = "b+bpxskz7n3qpc4u5wmn6aytre@bounces.example.com"
ID = "msg_0123@example.com"

EXPECTED = {
    "yahoo": Complaint(
        feedback_type=FeedbackType.ABUSE,
        reporter="Yahoo!-Mail-Feedback/2.0",
        return_paths=(OURS,),
        message_id=ID,
    ),
    "comcast-validity": Complaint(
        feedback_type=FeedbackType.ABUSE,
        reporter="ReturnPathFBL/1.0",
        return_paths=(OURS,),
        message_id=ID,
    ),
    "microsoft-jmrp-attached": Complaint(
        feedback_type=FeedbackType.ABUSE,
        reporter="<staff@hotmail.com>",
        return_paths=(OURS,),
        message_id=ID,
    ),
    "microsoft-jmrp-top-level": Complaint(
        feedback_type=FeedbackType.ABUSE,
        reporter="staff@hotmail.com",
        return_paths=(OURS,),
        message_id=ID,
    ),
    "rfc5965-minimal": Complaint(feedback_type=FeedbackType.ABUSE, reporter="SomeGenerator/1.0"),
    "rfc5965-fraud-headers-only": Complaint(
        feedback_type=FeedbackType.FRAUD,
        reporter="SomeGenerator/1.0",
        return_paths=(OURS,),
        message_id=ID,
    ),
    "not-spam": Complaint(feedback_type=FeedbackType.NOT_SPAM, reporter="SomeGenerator/1.0", message_id=ID),
    "auth-failure": Complaint(feedback_type=FeedbackType.AUTH_FAILURE, reporter="Reporter/1.0"),
    "fastmail-redacted": Complaint(
        feedback_type=FeedbackType.ABUSE, reporter="Fastmail-FBL/1.0", return_paths=(OURS,), message_id=ID
    ),
    "unknown-type": Complaint(feedback_type=FeedbackType.OTHER, reporter="P/1"),
    "attached-only": Complaint(
        feedback_type=FeedbackType.ABUSE,
        reporter="Abuse Desk <abuse@small.example>",
        return_paths=(OURS,),
        message_id=ID,
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_complaint(name: str) -> None:
    assert read_complaint((CORPUS / f"{name}.eml").read_bytes(), attached=True) == EXPECTED[name]


def test_the_corpus_is_whole() -> None:
    assert set(EXPECTED) == {path.stem for path in CORPUS.glob("*.eml")}


def test_a_message_that_is_only_attached() -> None:
    for name in EXPECTED:
        found = read_complaint((CORPUS / f"{name}.eml").read_bytes())
        assert (found is None) == (name == "attached-only")


def test_what_is_none() -> None:
    for path in DSN.glob("*.eml"):
        assert read_complaint(path.read_bytes()) is None
    bounce = (DSN / "gmail-dsn.eml").read_bytes()
    assert read_complaint(bounce, attached=True) is None
    assert read_complaint(b"Subject: hello\r\n\r\nabuse", attached=True) is None


def test_only_complaints_are_complaints() -> None:
    assert {name for name, expected in EXPECTED.items() if not expected.is_complaint} == {"not-spam", "auth-failure"}


def test_candidates_are_bounded() -> None:
    fields = "".join(f"X-{number}: b+{number:024d}@a.b\r\n".replace("0", "a").replace("1", "z") for number in range(90))
    mime = f"Content-Type: message/feedback-report\r\n\r\nFeedback-Type: abuse\r\n{fields}".encode()
    found = read_complaint(mime)
    assert found is not None
    assert 0 < len(found.return_paths) <= RETURN_PATHS


@given(st.text(max_size=80))
def test_any_value_of_a_field(value: str) -> None:
    names = ("Feedback-Type", "Arrival-Date", "Source-IP", "Original-Mail-From", "Original-Rcpt-To", "Reported-Domain")
    fields = "".join(f"{name}: {value}\r\n" for name in names)
    mime = f"Content-Type: message/feedback-report\r\n\r\n{fields}"
    assert read_complaint(mime.encode("utf-8", "replace")) is not None
