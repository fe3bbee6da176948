"""Tables for terminals of any width, and colours only where they are wanted."""

import inspect
import re

import pytest

from appliance.cli import leaves, main
from appliance.cli.output import fitted
from tests.cli.shell import Shell
from tests.terminal import shown_on_terminal

HEADINGS = ["ID", "NAME", "CREATED (UTC)", "REASON"]


def test_columns_are_cut_before_any_is_omitted() -> None:
    """The widest first; times and the first column stay whole."""
    widths = dict(enumerate([36, 20, 16, 200]))
    assert fitted(widths, HEADINGS, [3, 2, 1], 300) == widths
    assert fitted(widths, HEADINGS, [3, 2, 1], 120) == {0: 36, 1: 20, 2: 16, 3: 42}
    assert fitted(widths, HEADINGS, [3, 2, 1], 80) == {0: 36, 1: 11, 2: 16, 3: 11}


def test_columns_are_omitted_in_the_given_order() -> None:
    """Until the others fit; the first one always stays."""
    widths = dict(enumerate([36, 20, 16, 200]))
    assert fitted(widths, HEADINGS, [2, 1, 3], 60) == {0: 36, 1: 10, 3: 10}
    assert fitted(widths, HEADINGS, [3, 2, 1], 60) == {0: 36, 1: 20}
    assert fitted(widths, HEADINGS, [3, 2, 1], 20) == {0: 36}


def on_a_terminal(shell: Shell, columns: int, *words: str, **environment: str) -> list[str]:
    """The lines that a command prints on a terminal of this width."""
    words = (*words, "--config", str(shell.config))
    return shown_on_terminal(*words, columns=columns, **environment).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_list_fits_the_terminal(acme: Shell, columns: int) -> None:
    """Each row is one line; the last line names the columns that are missing, and --wide shows them."""
    key_id = acme.json("key", "create", "--name", "a long label of a key", "--scope", "full")["id"]
    acme.json("domain", "add", "acme.example")
    acme.json("credential", "create")
    acme.json("suppression", "add", "someone.with.a.long.name@a-long-domain.example.net")
    acme.json("inbound", "add", "someone.with.a.long.name@acme.example")
    acme.json("queue", "pause", "google", "--reason", "a reason that is longer than a small terminal is wide")
    for words in (
        "attention",
        "inbound list",
        "queue show",
        "key list",
        "account list",
        "credential list",
        "domain list",
        "user list",
        "suppression list",
        "audit",
    ):
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in on_a_terminal(acme, columns, *words.split())]
        assert max(map(len, lines)) <= columns, words
    shown = on_a_terminal(acme, columns, "key", "list")
    assert shown[1].startswith(key_id)
    assert "\nColumns not shown: " in "\n".join(shown)
    assert "full" in shown[1]
    assert columns == 60 or "a long " in shown[1]  # instead of the empty column of revoked keys
    wide = on_a_terminal(acme, columns, "key", "list", "--wide")
    assert (len(wide), "a long label of a key" in wide[1]) == (2, True)
    status = "\n".join(on_a_terminal(acme, columns, "status")).partition("\n\n")[0].splitlines()
    assert all(len(line) <= columns or len(line.split()) <= 2 for line in status)  # a long path stays whole
    assert columns > 60 or any(line.startswith(" " * 12) for line in status)


def test_every_table_can_be_shown_whole() -> None:
    """A table that omits columns names --wide, so each command that prints one has it."""
    callbacks = {name: inspect.unwrap(command.callback) for name, command in leaves(main) if command.callback}
    tables = {name for name, called in callbacks.items() if "show_list" in called.__code__.co_names}
    wide = {name for name, command in leaves(main) if any("--wide" in one.opts for one in command.params)}
    assert {"key list", "queue show", "ramp show"} <= tables <= wide


def test_no_color_is_honoured(acme: Shell) -> None:
    """By tables and by `status`; a dumb terminal and a pipe get no colours anyway."""
    acme.json("key", "create")
    assert "\x1b" in on_a_terminal(acme, 80, "key", "list")[0]
    assert "\x1b" not in "".join(on_a_terminal(acme, 80, "key", "list", NO_COLOR="1"))
    assert "\x1b" not in "".join(on_a_terminal(acme, 80, "status", NO_COLOR="1"))
    assert "\x1b" not in "".join(on_a_terminal(acme, 80, "key", "list", TERM="dumb"))
    assert "\x1b" not in "".join(on_a_terminal(acme, 80, "backup", str(acme.config.with_name("a.tar")), NO_COLOR="1"))
    assert "\x1b" not in acme.text("key", "list")
