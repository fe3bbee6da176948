"""The README: its first screen, and a comparison that stays honest."""

import re
from pathlib import Path

from appliance.web.openapi import document

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FIRST_SCREEN = 32  # lines
# What the README says is missing, and the part of an API's path or of a request's fields that would provide it.
MISSING = {
    "open and click tracking": r"track_opens|track_clicks|\"tracking\"",
}


def test_the_first_screen_shows_what_it_is_and_how_to_try_it() -> None:
    """One sentence, a picture that exists, the two commands, and a first message, in this order."""
    screen = "\n".join(README.splitlines()[:FIRST_SCREEN])
    parts = [
        "self-hosted transactional-email server",
        "![",
        "sh packaging/run",
        "sh packaging/test",
        "/emails",
        '"subject"',
    ]
    places = [screen.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", screen)
    assert (ROOT / picture).is_file()


def section(title: str) -> str:
    """The text below a heading."""
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_comparison_has_a_date_and_names_the_alternatives() -> None:
    """Each with what a user of it would miss."""
    text = section("Why switch")
    assert re.search(r"As of \w+ 20\d\d", text)
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    assert all(len(row) == 6 and row[4].strip() for row in rows)
    named = " ".join(row[1] for row in rows)
    for name in ("Postal", "Hyvor Relay", "useSend", "Postfix", "Resend", "Postmark", "Mailgun", "SendGrid"):
        assert name in named


def test_what_is_called_missing_is_missing() -> None:
    """The API has no such part. A change that adds one also changes the README."""
    missing = section("Why switch").partition("**Not here yet:**")[2]
    described = str(document("http://127.0.0.1")).replace("'", '"')
    for name, pattern in MISSING.items():
        assert (name in missing) is (re.search(pattern, described) is None), name
