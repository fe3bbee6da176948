"""`appliance backup`, `verify`, `restore`, `pause` and `resume`, as an operator types them."""

from pathlib import Path

import pytest

from tests.cli.shell import Shell, fields
from tests.cli.test_queue import accept, deferred, due
from tests.docs.test_cli import documented


def test_a_backup_is_made_verified_and_restored(acme: Shell, tmp_path: Path) -> None:
    """The three commands, their words, and the documented JSON."""
    accept(acme, "a@example.net")
    deferred(acme, "b@example.net")
    file = tmp_path / "backup.tar"
    made = acme.json("backup", str(file))
    assert fields(made) == fields(documented("backup"))
    assert (made["file"], made["bytes"]) == (str(file), file.stat().st_size)
    verified = acme.json("verify", str(file))
    assert fields(verified) == fields(documented("verify"))
    assert (verified["ok"], verified["accounts"], verified["messages"]) == (True, 1, 2)
    assert "is complete: made on " in acme.text("verify", str(file))
    restored = acme.json("restore", str(file), "--force")
    assert fields(restored) == fields(documented("restore"))
    assert (restored["paused"], restored["due"], restored["deferred"]) == (True, 1, 1)
    text = acme.text("restore", str(file), "--force")
    assert "`appliance resume` would send to 1 recipient at once and to 1 later; the oldest message is from 20" in text


def test_a_restore_of_an_empty_queue_says_so(acme: Shell, tmp_path: Path) -> None:
    acme.text("backup", str(tmp_path / "backup.tar"))
    assert "The queue is empty" in acme.text("restore", str(tmp_path / "backup.tar"), "--force")


def test_refusals_are_one_line(acme: Shell, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    acme.text("backup", str(file))
    assert "never replaces a file" in acme.refused("backup", str(file))
    assert "no such file" in acme.refused("verify", str(tmp_path / "gone.tar"))
    assert "no such file" in acme.refused("backup", str(tmp_path / "gone" / "backup.tar"))
    assert "use --force" in acme.refused("restore", str(file))
    file.write_bytes(file.read_bytes()[:-1])
    reason = f"{file} is not a backup that can be restored: its end is missing"
    assert reason in acme.refused("verify", str(file))
    assert reason in acme.refused("restore", str(file), "--force")
    acme.data_dir.rename(tmp_path / "moved")
    assert "there is no database" in acme.refused("backup", str(tmp_path / "other.tar"))


def test_a_postgresql_is_backed_up_by_its_own_means(acme: Shell, tmp_path: Path) -> None:
    """One line says by which, and which file belongs to it; nothing is connected to, and nothing written."""
    acme.config.write_text(acme.config.read_text() + '\n[store]\nurl = "postgresql://a:geheim@127.0.0.1:1/a"\n')
    file, key = tmp_path / "backup.tar", acme.data_dir / "appliance.key"
    refused = acme.refused("backup", str(file))
    assert (
        "store.url names a PostgreSQL: back it up with pg_dump, or by base backups and archived WAL (PITR)" in refused
    )
    assert f"keep {key} with that" in refused
    refused = acme.refused("restore", str(file), "--force")
    assert f"pg_restore or PITR, put the key file kept with it at {key}, and run `appliance pause` before" in refused
    assert not file.exists()


@pytest.mark.parametrize("command", ["backup", "verify", "restore"])
def test_a_pipe_is_wrong_usage(acme: Shell, command: str) -> None:
    """What means a pipe elsewhere does not make a file of that name."""
    assert "name a file" in acme.misused(command, "-")


def test_a_pause_is_seen_wherever_one_looks(acme: Shell) -> None:
    """`queue` and `explain` tell of it, for mail that is due, deferred or simulated, until `resume`."""
    waiting, later, simulated = (
        accept(acme, "a@example.net"),
        deferred(acme, "b@example.net"),
        accept(acme, "c@example.net", simulated=True),
    )
    assert acme.json("pause", "--reason", "we move") == documented("pause") | {"reason": "we move"}
    assert acme.json("queue")["paused"]["reason"] == "we move"
    assert acme.text("queue").startswith("All delivery is paused: we move. Resume it: appliance resume\n")
    words = "all mail is paused: we move (`appliance resume` lets it go)"
    for message, told in ((waiting, f"waiting: {words}"), (simulated, f"waiting: {words}"), (later, f"for {words}")):
        (recipient,) = acme.json("explain", message.id)["recipients"]
        assert told in recipient["explanation"]
    assert "Delivery is paused: we move" in acme.text("pause", "--reason", "another")
    resumed = acme.json("resume")
    assert fields(resumed) == fields(documented("resume"))
    assert resumed == {"was_paused": True, "cancelled": 0, "due": 2, "deferred": 1}
    assert "paused" not in acme.json("queue")
    assert acme.text("resume") == "Delivery was not paused.\n"


@pytest.mark.parametrize("simulated", [False, True])
def test_what_is_older_than_the_pause_can_be_given_up(acme: Shell, simulated: bool) -> None:
    """`resume --cancel-old` fails it and gives its credits back; what came later goes."""
    old = accept(acme, "a@example.net", "b@example.net", simulated=simulated)
    acme.text("pause")
    accept(acme, "new@example.net")
    assert acme.json("resume", "--cancel-old") == {"was_paused": True, "cancelled": 2, "due": 1, "deferred": 0}
    assert due(acme) == ["new@example.net"]
    assert acme.json("account", "show", "acme")["credits"] == 99
    assert {each["status"] for each in acme.json("explain", old.id)["recipients"]} == {"failed"}
