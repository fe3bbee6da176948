"""`appliance explain --reply`: the verdict on a reply, and the rule behind it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.cli import main


def explained(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(main, ["explain", *words, "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer


@pytest.fixture(autouse=True)
def _nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("APPLIANCE_CONFIG", raising=False)


def test_the_verdict_on_a_reply() -> None:
    text = "550 5.4.1 Recipient address rejected: Access denied. [AM0EUR02FT012.eop-EUR02.prod.protection.outlook.com]"
    assert explained("--reply", text) == {
        "code": 550,
        "enhanced": "5.4.1",
        "class": "invalid_recipient",
        "fault": "recipient",
        "suppress": True,
        "hold": False,
        "rule": "microsoft365-unknown-recipient",
    }
    assert explained("--reply", "451 4.7.1 Try again later")["hold"] is False
    assert explained("--reply", "421 4.7.28 unusual rate of unsolicited mail")["hold"] is True
    without_code = explained("--reply", "user unknown")
    assert (without_code["code"], without_code["enhanced"], without_code["suppress"]) == (None, None, True)


def test_a_provider_narrows_the_rules() -> None:
    text = "554 delivery error: dd This user doesn't have a yahoo.com account (ada@yahoo.com)"
    assert explained("--reply", text, "--provider", "yahoo")["rule"] == "yahoo-unknown-user"
    assert explained("--reply", text, "--provider", "google")["rule"] == "unknown-user"
    for provider in ("google", "outlook", "microsoft365", "proton", "fastmail", "qmail", "postgrey", "exchange"):
        assert explained("--reply", "550 5.1.1 no", "--provider", provider)["rule"] == "recipient-status"


def test_the_text_names_the_rule_and_its_source() -> None:
    result = CliRunner().invoke(main, ["explain", "--reply", "451 4.7.1 Try again later"])
    lines = result.stdout.splitlines()
    assert lines[:3] == ["class: temporary", "fault: none", "suppress: no"]
    assert "recipients accepted before" in lines[3]
    assert lines[4] == "rule: try-again-later (any)"
    assert "rspamd" in lines[5]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Give a message, an address, or --reply TEXT."),
        (("msg_1", "--reply", "550 no"), "Give a message, an address, or --reply TEXT."),
        (("msg_1", "--provider", "google"), "--provider is for --reply."),
        (("--reply", "550 no", "--provider", "gogle"), "'gogle' is not known"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], reason: str) -> None:
    result = CliRunner().invoke(main, ["explain", *words])
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.split())


def test_a_reply_that_accepts_is_not_judged() -> None:
    result = CliRunner().invoke(main, ["explain", "--reply", "250 2.0.0 OK"])
    assert result.exit_code == 2
    assert "250 is not a refusal" in result.stderr
