"""A command for one account need not name it where there is only one."""

import pytest

from tests.cli.shell import Shell

COMMANDS = (
    ("user", "invite", "ann@acme.example", "--role", "viewer"),
    ("user", "list"),
    ("user", "role", "acme@example.org", "owner"),
    ("user", "remove", "ann@acme.example"),
    ("domain", "add", "acme.example"),
    ("domain", "list"),
    ("domain", "records", "acme.example"),
    ("domain", "rotate", "acme.example"),
    ("domain", "remove", "acme.example"),
    ("credential", "create"),
    ("credential", "list"),
    ("key", "create", "--scope", "full"),
    ("suppressions", "add", "ada@example.net"),
    ("suppressions", "list"),
    ("suppressions", "export"),
    ("suppressions", "import", "-"),
    ("suppressions", "remove", "ada@example.net"),
)


def test_the_only_account_is_meant(acme: Shell) -> None:
    """By every command that takes the name of one; the text tells which it was."""
    for words in COMMANDS:
        acme.json(*words)
    assert "Account acme may no longer send" in acme.text("suppressions", "add", "bob@example.net")
    username = acme.json("credential", "create")["username"]
    acme.json("credential", "revoke", username)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_one_of_several_has_to_be_named(acme: Shell, words: tuple[str, ...]) -> None:
    acme.create("zoo")
    assert "there are several accounts" in acme.refused(*words)


def test_without_an_account_the_first_step_is_told(acme: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    acme.json("account", "delete", "acme", "--yes", "acme")
    assert "appliance account create" in acme.refused("domain", "list")
    assert "appliance account create" in Shell(tmp_path_factory.mktemp("empty")).refused("domain", "list")


def test_too_many_words_are_wrong_usage(acme: Shell) -> None:
    acme.misused("domain", "add")
    acme.misused("domain", "add", "acme", "a.example", "b.example")
    acme.misused("suppressions", "import", "acme", "no such file")
