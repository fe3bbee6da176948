"""`appliance ramp …`: the percentages that a command stores, and when there can be no ramp."""

from pathlib import Path

import pytest

from appliance.model.ramp import RampPlan
from appliance.store import Store
from tests.cli.shell import Shell
from tests.docs.test_cli import documented

RELAY = '[delivery]\nmode = "relay"\nrelay_host = "smtp.relay.test"\n'


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return configured(tmp_path, RELAY)


def configured(directory: Path, settings: str) -> Shell:
    made = Shell(directory)
    made.config.write_text(made.config.read_text() + settings)
    return made


def test_percentages_are_stored_and_win_over_the_settings(tmp_path: Path) -> None:
    shell = configured(tmp_path, f"{RELAY}[delivery.ramp]\npercent = 10\n")
    assert shell.json("ramp") == {"percent": 10, "providers": {}}
    assert shell.json("ramp", "set", "25", "--provider", "google") == {"percent": 10, "providers": {"google": 25}}
    assert shell.json("ramp", "set", "0") == {"percent": 0, "providers": {"google": 25}}
    assert shell.text("ramp").startswith("0 % of the recipients go direct, the others by the relay.\ngoogle: 25 %\n")
    assert shell.json("ramp", "reset", "--provider", "google") == {"percent": 0, "providers": {}}
    assert shell.json("ramp", "reset") == {"percent": 10, "providers": {}}


def test_the_ramp_is_off_until_a_percentage_is_set(shell: Shell) -> None:
    assert shell.json("ramp") == {"percent": None, "providers": {}}
    assert shell.text("ramp") == "The ramp is off. Start it: appliance ramp set 5\n"
    assert not shell.data_dir.exists()
    assert "First set a percentage for all" in shell.refused("ramp", "set", "25", "--provider", "google")
    assert "Start it: appliance ramp set 5" in shell.refused("ramp", "auto", "on")
    assert shell.json("ramp", "set", "0") == {"percent": 0, "providers": {}}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("", 'needs delivery.mode = "relay"; it is "direct"'),
        ('[delivery]\nmode = "sandbox"\n', 'needs delivery.mode = "relay"; it is "sandbox"'),
        ('[delivery]\nmode = "relay"\n[delivery.relays."a.test"]\nhost = "b.test"\n', "needs delivery.relay_host"),
    ],
)
def test_without_a_relay_there_is_no_ramp(tmp_path: Path, settings: str, reason: str) -> None:
    shell = configured(tmp_path, settings)
    for words in (("set", "5"), ("reset",), ("auto",), ("auto", "on")):
        assert shell.refused("ramp", *words) == f"Error: The ramp {reason}.\n"
    assert shell.json("ramp") == {"percent": None, "providers": {}}
    refused = configured(tmp_path, f"{settings}[delivery.ramp]\npercent = 0\n").refused("config", "check")
    assert f"delivery.ramp.percent: {reason}" in refused


@pytest.mark.parametrize("percent", ["101", "-1", "5.5", "many"])
def test_a_percentage_is_a_whole_number_up_to_100(shell: Shell, percent: str) -> None:
    assert "Error" in shell.misused("ramp", "set", "--", percent)


def test_a_provider_must_be_known(shell: Shell) -> None:
    shell.json("ramp", "set", "5")
    refused = shell.refused("ramp", "set", "5", "--provider", "gogle")
    assert refused.startswith("Error: There is no provider gogle. Known: amazon, apple, ")


def test_a_command_ends_automatic_changes(shell: Shell) -> None:
    shell.json("ramp", "set", "5")
    assert shell.json("ramp", "auto", "on") == documented("ramp auto")
    assert shell.json("ramp", "auto") == {"auto": True}
    assert "Changes automatically." in shell.text("ramp")
    shell.json("ramp", "set", "10")
    assert shell.json("ramp", "auto") == {"auto": False}


def test_automatic_changes_begin_at_the_percentage_of_the_settings(tmp_path: Path) -> None:
    shell = configured(tmp_path, f"{RELAY}[delivery.ramp]\npercent = 10\n")
    shell.json("ramp", "auto", "on")

    async def stored(store: Store) -> RampPlan | None:
        return await store.ramp.stored()

    assert shell.stored(stored) == RampPlan(10, auto=True)
