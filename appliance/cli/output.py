"""In charge of what a command prints: one JSON object for scripts, a table or a line or two for people."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

Row = Mapping[str, Any]


def _say(text: str) -> None:
    """Print it; where that fails what was done stays done, and one line says that its answer is lost."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise  # who read it has seen enough: click ends quietly
    except OSError as error:
        abandon_stdout()
        reason = (error.strerror or str(error)).lower()
        raise click.ClickException(f"done, but the answer cannot be written: {reason}") from None


def abandon_stdout() -> None:
    """Let Python's last flush go nowhere: it would fail once more and spoil the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def show(as_json: bool, answer: Row, text: str) -> None:
    """Print `answer` as JSON, or else `text`."""
    _say(json.dumps(answer) if as_json else text)


def show_record(as_json: bool, answer: Row, worded: Row) -> None:
    """Print `answer` as JSON, or `worded` with one line a field."""
    width = max(map(len, worded))
    show(as_json, answer, "\n".join(f"{key:<{width}}  {cell(value)}" for key, value in worded.items()))


def show_list(as_json: bool, name: str, rows: Sequence[Row], columns: Mapping[str, str], nothing: str) -> None:
    """Print `rows` as one JSON object, or as a table of `columns` (key: heading); `nothing` when there is none."""
    if as_json:
        _say(json.dumps({name: rows}))
    elif not rows:
        _say(nothing)
    else:
        _table([[_short(key, row[key]) for key in columns] for row in rows], list(columns.values()))


def printable(text: str) -> str:
    """Text from outside that cannot drive the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cell(value: object) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _short(key: str, value: Any) -> str:
    """A table has no room for milliseconds."""
    return value[:16].replace("T", " ") if key.endswith("_at") and value else cell(value)


def _table(rows: list[list[str]], headings: list[str]) -> None:
    if sys.stdout.isatty():
        _rich_table(rows, headings)
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for line in (headings, *rows):
        _say("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _rich_table(rows: list[list[str]], headings: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        # The first column is what other commands ask for: it must come out in one piece.
        table.add_column(heading, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))  # Text, so that no name is taken for markup
    Console().print(table)
