"""What bounces and other answers say, by a corpus of the shapes in which mail servers write them."""

import csv
from pathlib import Path

import pytest

from appliance.feedback.dsn import WORDS_CHARACTERS, Notice, NoticeKind, read_notice

CORPUS = Path(__file__).parent / "corpus" / "dsn"
ADDRESS = "rcpt@example.net"
with (CORPUS / "expected.tsv").open(newline="") as table:
    EXPECTED = {row["file"]: row for row in csv.DictReader(table, delimiter="\t")}


def as_row(notice: Notice) -> dict[str, str]:
    """A notice as the table has it."""
    return {
        "kind": notice.kind.value,
        "code": str(notice.code or ""),
        "status": notice.status or "",
        "class": notice.bounce_class.value if notice.bounce_class else "",
        "recipient_fault": "yes" if notice.recipient_fault else "no",
        "remote_mta": notice.remote_mta or "",
    }


def test_the_corpus_is_whole() -> None:
    """Sixty shapes at least, each file in the table, and of every kind one."""
    assert set(EXPECTED) == {path.stem for path in CORPUS.glob("*.eml")}
    assert len(EXPECTED) >= 60
    assert {row["kind"] for row in EXPECTED.values()} == {kind.value for kind in NoticeKind}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_message_says(name: str) -> None:
    """Kind, code, status, class, fault and server, as the table has them; words are there and bounded."""
    notice = read_notice((CORPUS / f"{name}.eml").read_bytes(), ADDRESS)
    assert {"file": name, **as_row(notice)} == EXPECTED[name], notice.words
    assert 0 < len(notice.words) <= WORDS_CHARACTERS
    assert notice.words.isprintable()
