"""Names of commands: one grammar, earlier spellings as hidden aliases, and the short options."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance import __version__
from appliance.cli import ALIASES as NOUNS
from appliance.cli import leaves, main
from appliance.cli.options import CommandGroup
from tests.cli.shell import Shell

# Earlier command line, and the one that the help shows.
ALIASES = [
    ("messages", "message list"),
    ("messages invoice", "message list invoice"),
    ("message", "message list"),
    ("messages --scheduled", "message list --scheduled"),
    ("nodes", "node list"),
    ("nodes list", "node list"),
    ("queue", "queue show"),
    ("suppressions list acme", "suppression list --account acme"),
    ("domain list acme", "domain list --account acme"),
    ("key list acme", "key list --account acme"),
    ("audit acme --limit 1", "audit --account acme --limit 1"),
    ("feedback inbox", "feedback list"),
]


@pytest.mark.parametrize(("earlier", "now"), ALIASES)
def test_earlier_spellings_still_work(acme: Shell, earlier: str, now: str) -> None:
    """They do the same as the command that replaced them."""
    assert acme.json(*earlier.split()) == acme.json(*now.split())


def test_changes_by_earlier_spellings_are_audited(acme: Shell) -> None:
    """Under the same action, with the same object."""
    acme.create("zoo")
    for words in ("account delete zoo --yes zoo", "key revoke acme {key}", "credential revoke acme {username}"):
        key, username = acme.json("key", "create", "acme")["id"], acme.json("credential", "create", "acme")["username"]
        acme.json(*words.format(key=key, username=username).split())
    acme.json("user", "invite", "acme", "ann@acme.example", "--role", "viewer")
    acme.json("user", "add", "--account", "acme", "bob@acme.example", "viewer")
    actions = {(row["action"], row["object"]) for row in acme.json("audit")["audit"]}
    assert {"account.deleted", "api_key.revoked", "smtp_credential.revoked"} <= {action for action, _ in actions}
    assert {("user.invited", "ann@acme.example"), ("user.invited", "bob@acme.example")} <= actions
    assert ("account.created", "zoo") in actions


def test_the_help_shows_one_spelling() -> None:
    """Singular nouns, and neither an alias nor an option that replaced nothing."""
    names = {name for name, _ in leaves(main)}
    assert not {name for name in names if name.split()[0] in ("messages", "nodes", "suppressions", "keys", "accounts")}
    shown = CliRunner().invoke(main, ["--help"]).stdout
    assert "suppressions" not in shown
    assert "revoke " not in shown
    usage = CliRunner().invoke(main, ["domain", "add", "-h"]).stdout.splitlines()[0]
    assert usage.endswith("domain add [OPTIONS] DOMAIN")


def test_advice_and_documents_use_the_spelling_of_the_help() -> None:
    """No alias, and the account after --account, in every command that a person is told to run."""
    verbs = [
        f"{name} {verb}"
        for name, group in main.commands.items()
        if isinstance(group, CommandGroup)
        for verb in group.aliases
    ]
    optional = [name for name, command in leaves(main) if any("--account" in option.opts for option in command.params)]
    earlier = "|".join([*NOUNS, *verbs])
    named = "|".join(optional)
    account = r"(?:acme|default|NAME|ACCOUNT|{\w*\.?name})(?![\w./])"
    found = re.compile(rf"(?<!he )appliance (?:(?:{earlier})(?![\w-])|(?:{named}) {account})")
    root = Path(__file__).parents[2]
    files = [*root.glob("appliance/**/*.py"), *root.glob("docs/**/*.md"), root / "README.md"]
    files.remove(root / "docs/cli.md")  # which lists the earlier spellings
    assert [
        (str(file.relative_to(root)), match[0]) for file in files for match in found.finditer(file.read_text())
    ] == []


def test_an_account_cannot_be_named_twice(acme: Shell) -> None:
    """The option or the argument, not both; nor an email address twice."""
    assert "--account names the account" in acme.misused("domain", "list", "acme", "--account", "acme")
    assert "--account names the account" in acme.misused("domain", "add", "acme", "a.example", "--account", "acme")
    assert "Missing argument 'ROLE'" in acme.misused("user", "add", "ann@acme.example")
    assert "Missing argument 'EMAIL'" in acme.misused("account", "create", "new", "--password-stdin")


def test_version_and_help_in_every_form(shell: Shell) -> None:
    """A word or a short option."""
    for words in (["version"], ["--version"], ["-V"]):
        assert CliRunner().invoke(main, words).stdout == f"appliance {__version__}\n"
    for words in (["help", "queue", "retry"], ["queue", "retry", "-h"], ["queue", "retry", "--help"]):
        result = CliRunner().invoke(main, words, prog_name="appliance")
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: appliance queue retry [OPTIONS]")
    assert CliRunner().invoke(main, ["help"], prog_name="appliance").stdout.startswith("Usage: appliance [OPTIONS]")
