"""Classes of bounces, by replies of real servers; and the agreement with what delivery does about the same replies."""

import csv
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.outcome import Disposition, FaultSide, judge
from appliance.deliver.smtp.protocol import ReplyReader, Stage, Verdict, answered
from appliance.feedback.bounce_class import BounceClass, blames_recipient, classify

# Replies of mail servers and large providers, after their documentation and public logs.
with (Path(__file__).parent / "corpus" / "replies.tsv").open(newline="") as table:
    REPLIES = [
        (row["source"], row["reply"], BounceClass(row["class"])) for row in csv.DictReader(table, delimiter="\t")
    ]
UNWANTED = {BounceClass.AUTHENTICATION, BounceClass.REPUTATION, BounceClass.CONTENT, BounceClass.POLICY}


def said(text: str) -> Verdict:
    """The client's report of this reply to RCPT, read as from the wire."""
    reader = ReplyReader()
    reader.feed(text.encode() + b"\r\n")
    reply = reader.next_reply()
    assert reply is not None
    return answered(Stage.RCPT, reply)


def test_the_corpus_is_large() -> None:
    """Eighty replies at least, of each class and of thirty sources."""
    assert len(REPLIES) >= 80
    assert {expected for _, _, expected in REPLIES} == set(BounceClass)
    assert len({source for source, _, _ in REPLIES}) >= 30


@pytest.mark.parametrize(("source", "text", "expected"), REPLIES)
def test_the_class_of_a_reply(source: str, text: str, expected: BounceClass) -> None:
    """Each has the class that its provider's documentation, or its words, give it."""
    verdict = said(text)
    assert classify(verdict.code, verdict.enhanced, verdict.text) is expected, source


def agrees(verdict: Verdict) -> None:
    """The address is blamed where delivery suppresses it; the sender's faults have the classes of such."""
    judgement = judge(verdict)
    found = classify(verdict.code, verdict.enhanced, verdict.text)
    assert blames_recipient(verdict.code, verdict.enhanced, verdict.text) == judgement.suppresses
    if judgement.suppresses:
        assert found is BounceClass.INVALID_RECIPIENT
    if judgement.result is Disposition.BOUNCED and judgement.fault is FaultSide.SENDER:
        assert found in UNWANTED
    if verdict.code is not None and verdict.code // 100 == 4:
        assert found in (BounceClass.TEMPORARY, BounceClass.MAILBOX_FULL)


@pytest.mark.parametrize("text", [text for _, text, _ in REPLIES])
def test_class_and_delivery_agree(text: str) -> None:
    """For every reply of the corpus."""
    agrees(said(text))


STATUSES = [
    "",
    *(f"{family}.{subject}.{detail} " for family, subject, detail in product("45", range(8), (0, 1, 2, 3, 7, 26))),
]
WORDS = ["", "user unknown", "blocked by policy", "mailbox full", "sender: no such user", "receiving mail too quickly"]


def test_class_and_delivery_agree_on_every_status() -> None:
    """For each status of RFC 3463 with telling words and without."""
    for code, status, words in product((450, 550, 552, 554), STATUSES, WORDS):
        agrees(said(f"{code} {status}{words}"))


@pytest.mark.parametrize(
    ("code", "status", "words", "expected", "blamed"),
    [
        (None, "5.1.1", "", BounceClass.INVALID_RECIPIENT, True),
        (None, None, "user unknown", BounceClass.INVALID_RECIPIENT, True),  # a bounce without a code
        (None, None, "", BounceClass.OTHER, False),
        (None, "4.4.7", "message expired", BounceClass.TEMPORARY, False),
        (None, "5.4.7", "delivery time expired", BounceClass.TEMPORARY, False),
        (554, None, "no such user", BounceClass.INVALID_RECIPIENT, False),  # only a 550 is believed
        (550, "5.7.x", "", BounceClass.OTHER, False),
        (550, "5.7.", "user unknown", BounceClass.INVALID_RECIPIENT, True),
        (550, "5.7.99999", "", BounceClass.OTHER, False),
        (250, "2.0.0", "user unknown", BounceClass.INVALID_RECIPIENT, False),
    ],
)
def test_what_is_missing_or_malformed(
    code: int | None, status: str | None, words: str, expected: BounceClass, blamed: bool
) -> None:
    """A late bounce may have no code, no status, or neither."""
    assert classify(code, status, words) is expected
    assert blames_recipient(code, status, words) is blamed


@given(st.none() | st.integers(-1, 10**6), st.none() | st.text(max_size=20), st.text())
def test_any_input_has_a_class(code: int | None, status: str | None, words: str) -> None:
    """Nothing raises, and a blamed address is an invalid one."""
    found = classify(code, status, words)
    if blames_recipient(code, status, words):
        assert found is BounceClass.INVALID_RECIPIENT
