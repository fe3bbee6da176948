"""Command output: one JSON object for scripts; a line, a table or a progress bar for people."""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import Any

import click

from appliance.cli.options import is_json, is_wide
from appliance.times import rfc3339

Row = Mapping[str, Any]
CUT_TO = 10  # characters that a column of a narrow table keeps


def _echo(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        raise  # the reader closed the pipe: click exits quietly
    except OSError as error:
        # To /dev/null: Python's last flush would fail again and change the exit code.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise click.ClickException(f"done, but the output cannot be written: {system_text(error)}") from None


def system_text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextmanager
def file_errors() -> Iterator[None]:
    """Turn an OSError into one line with its file."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {system_text(error)}") from None


def record(source: object, *names: str) -> dict[str, Any]:
    """Return these attributes by name; times (`…_at`) as text."""
    values = {name: getattr(source, name) for name in names}
    return {
        name: rfc3339(value) if name.endswith("_at") and value is not None else value for name, value in values.items()
    }


def show(answer: Row, text: str) -> None:
    """Print `answer` with --json, else `text`."""
    _echo(json.dumps(answer) if is_json() else text)


def show_record(answer: Row, worded: Row | None = None) -> None:
    """Print `answer` with --json, else `worded` (by default the same) with one line per field."""
    rows = answer if worded is None else worded
    width = max(map(len, rows))
    show(answer, "\n".join(f"{key:<{width}}  {_cell(value)}" for key, value in rows.items()))


def show_list(
    answer: Mapping[str, Any],
    columns: Mapping[str, str],
    nothing: str,
    spare: Sequence[str] = (),
    worded: Callable[[dict[str, Any]], Row] = dict,
) -> None:
    """Print `answer` with --json, else its first member as a table of `columns` (key: heading), or `nothing`.

    `worded` makes a table's row. A narrow terminal omits empty columns, then the columns `spare`, in that order, then
    others from the right, but never the first one.
    """
    rows = [worded(row) for row in next(iter(answer.values()))]
    if is_json() or not rows:
        show(answer, nothing)
        return
    order = [*spare, *(key for key in reversed([*columns]) if key not in spare)][:-1]
    table = [[printable(_cell(row[key], short=key.endswith("_at"))) for key in columns] for row in rows]
    omitted = [list(columns).index(key) for key in order]
    omitted.sort(key=lambda at: any(row[at] != "-" for row in table))  # stable: empty columns first
    _table(table, [*columns.values()], omitted)


def printable(text: str) -> str:
    """Escape control characters, which a terminal would interpret."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def folded(text: str, indent: int) -> str:
    """Fold text that starts at column `indent` between words, below itself; only on a terminal."""
    if not sys.stdout.isatty() or is_wide():
        return text
    room = max(CUT_TO, shutil.get_terminal_size().columns - indent)
    return fill(text, room, break_long_words=False, break_on_hyphens=False).replace("\n", f"\n{' ' * indent}")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def zone_line(name: str, kind: str, value: str) -> str:
    """Return a record in zone-file syntax: text is quoted, in strings of up to 255 characters (RFC 1035 3.3)."""
    quoted = (f'"{value[at : at + 255]}"' for at in range(0, len(value), 255))
    return f"{name}. {kind} {' '.join(quoted) if kind == 'TXT' else value}"


def _cell(value: object, *, short: bool = False) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "-" if value is None else str(value)
    return text[:16].replace("T", " ") if short else text


def is_plain() -> bool:
    """Whether $NO_COLOR or $TERM ask for text without control sequences; click removes them from a pipe."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"


def coloured(text: str, colour: str) -> str:
    """Return the text with a colour or in bold, unless `is_plain`."""
    if is_plain():
        return text
    return click.style(text, bold=True) if colour == "bold" else click.style(text, fg=colour)


def _table(rows: list[list[str]], headings: list[str], order: list[int]) -> None:
    widths = dict(enumerate(max(map(_width, column)) for column in zip(headings, *rows, strict=True)))
    room = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and not is_wide():
        widths = fitted(widths, headings, order, room)
    for number, line in enumerate((headings, *rows)):
        text = "  ".join(_cut(line[column], width) for column, width in widths.items()).rstrip()
        _echo(text if number else coloured(text, "bold"))
    if omitted := [heading for column, heading in enumerate(headings) if column not in widths]:
        _echo(fill(f"Columns not shown: {', '.join(omitted)}. Show them with --wide or --json.", room))


def fitted(widths: dict[int, int], headings: list[str], order: list[int], room: int) -> dict[int, int]:
    """Return the widths of the columns that fit into `room`: cut to CUT_TO, and omitted in the given order.

    Times are never cut, nor the first column: other commands take it as an argument.
    """
    kept = dict(widths)
    floors = {at: width if "(UTC)" in headings[at] or not at else min(width, CUT_TO) for at, width in widths.items()}
    for column in order:
        if sum(floors[at] + 2 for at in kept) - 2 > room:
            del kept[column]
    while sum(kept.values()) + 2 * len(kept) - 2 > room and len(kept) > 1:
        kept[max(list(kept)[1:], key=lambda at: kept[at] - floors[at])] -= 1
    return kept


def _width(text: str) -> int:
    """Return the cells of a terminal that the text takes: two for a Chinese character."""
    return len(text) + sum(unicodedata.east_asian_width(character) in "FW" for character in text)


def _cut(text: str, width: int) -> str:
    if _width(text) > width:
        while _width(text) >= width:
            text = text[:-1]
        text += "…"
    return text + " " * (width - _width(text))


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr, on a terminal only, and remove it at the end; the function takes the fraction done."""
    if not sys.stderr.isatty() or is_plain():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)
