"""`appliance account delete`: asks for the name, and then the account is gone while its books stay."""

import os
import subprocess
import sys

from tests.cli.shell import ROOT, Shell, fields
from tests.docs.test_cli import documented
from tests.terminal import open_terminal


def test_an_account_is_deleted_by_its_name(acme: Shell) -> None:
    """Nothing lists it afterwards, and name and address are free."""
    answer = acme.json("account", "delete", "acme", "--yes", "acme")
    assert fields(answer) == fields(documented("account remove"))
    assert acme.json("account", "list")["accounts"] == []
    assert "no account named" in acme.refused("account", "show", "acme")
    assert "no account named" in acme.refused("account", "delete", "acme", "--yes", "acme")
    ledger = acme.stored(lambda store: store.accounts.ledger(answer["id"]))
    assert [line.amount for line in ledger] == [100]
    assert acme.create("acme")["id"] != answer["id"]


def test_another_name_deletes_nothing(acme: Shell) -> None:
    assert "nothing was deleted" in acme.refused("account", "delete", "acme", "--yes", "zoo")
    assert "--yes acme" in acme.misused("account", "delete", "acme")
    assert [each["name"] for each in acme.json("account", "list")["accounts"]] == ["acme"]


def test_a_terminal_is_asked(acme: Shell) -> None:
    words = [sys.executable, "-m", "appliance", "account", "delete", "acme", "--config", str(acme.config)]
    for typed, code in (("yes", 1), ("acme", 0)):
        ours, theirs = open_terminal()
        os.write(ours, f"{typed}\n".encode())
        ran = subprocess.run(
            words, stdin=theirs, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120
        )
        os.close(ours)
        os.close(theirs)
        assert ran.returncode == code, ran.stderr
        assert b"Type the name to delete account acme" in ran.stderr
    assert acme.json("account", "list")["accounts"] == []


def test_the_only_administrator_is_not_deleted(acme: Shell) -> None:
    """One line says what to do first; with another administrator the account can go."""
    acme.text("account", "role", "acme", "admin")
    refusal = acme.refused("account", "delete", "acme", "--yes", "acme")
    assert "the only administrator of the installation" in refusal
    assert "appliance account role NAME admin" in refusal
    assert acme.json("account", "show", "acme")["suspended"] is False
    words = ("account", "create", "other", "--email", "other@x.example", "--admin", "--password-stdin")
    acme.text(*words, stdin="a long password")
    acme.text("account", "delete", "acme", "--yes", "acme")
