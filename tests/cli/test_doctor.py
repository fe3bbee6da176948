"""`appliance doctor` as an operator types it: lines, JSON, exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.cli import main
from appliance.doctor import Finding, RecordToPublish, examination, fault, ok, warning
from tests.cli.shell import fields
from tests.docs.test_cli import documented

GOOD = ok("disk", "/var", "90 MiB free")
ODD = warning("queue", "all mail", "is paused: a \x1b[31mreason", "appliance resume")
BAD = fault(
    "dkim",
    "a.test",
    "is missing",
    "Publish this record.",
    RecordToPublish("x.a.test", "TXT", "v=DKIM1; p=" + "A" * 300),
)


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    config = tmp_path / "config.toml"
    config.write_text('[dns]\nresolvers = ["127.0.0.1:1"]\nblocklists = ["bl.test"]\n')
    asked: list[object] = []

    def run(*findings: Finding, options: tuple[str, ...] = ()) -> tuple[Result, object]:
        async def found(self: examination.Examination) -> list[Finding]:
            asked.append(self.blocklists)
            return list(findings)

        monkeypatch.setattr(examination.Examination, "run", found)
        return CliRunner().invoke(main, ["doctor", "--config", str(config), *options]), asked[-1]

    return run


def test_all_is_well(doctor: Any) -> None:
    """Exit code 0, and a line that says so; no blocklist is asked unless that is wished for."""
    result, blocklists = doctor(GOOD)
    assert (result.exit_code, blocklists) == (0, ())
    assert result.stdout == "ok       disk  /var 90 MiB free\n\nNo faults and no warnings.\n"
    assert doctor(GOOD, options=("--blocklists",))[1] == ("bl.test",)


def test_a_warning_alone_is_no_failure(doctor: Any) -> None:
    """Exit code 0; what comes from outside cannot drive the terminal."""
    result, _ = doctor(GOOD, ODD)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "\n                appliance resume\n" in result.stdout
    assert "Faults: 0, warnings: 1." in result.stdout


def test_a_fault_is_exit_code_1_with_the_record_to_paste(doctor: Any) -> None:
    result, _ = doctor(BAD)
    assert (result.exit_code, result.stderr) == (1, f"Error: faults: {BAD.check}\n")
    first = "v=DKIM1; p=" + "A" * 244
    assert f'x.a.test. TXT "{first}" "{"A" * 56}"' in result.stdout


def test_a_data_directory_that_cannot_be_entered_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by a user who may not look there, it says so instead of failing."""
    config = tmp_path / "config.toml"
    config.write_text(f'[server]\ndata_dir = "{tmp_path}"\n')

    async def refuse(self: examination.Examination) -> list[Finding]:
        raise PermissionError(13, "Permission denied", str(tmp_path / "appliance.db"))

    monkeypatch.setattr(examination.Examination, "run", refuse)
    result = CliRunner().invoke(main, ["doctor", "--config", str(config)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {tmp_path}/appliance.db: permission denied")


def test_the_json_is_as_documented(doctor: Any) -> None:
    result, _ = doctor(BAD, ODD, options=("--json",))
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert fields(answer) == fields(documented("doctor"))
    assert (answer["ok"], answer["faults"], answer["warnings"], len(answer["findings"])) == (False, 1, 1, 2)
