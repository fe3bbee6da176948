"""Writes the manual pages appliance(1) and appliance-config(5) into a directory, at build time.

Their text is that of the program: the help of each command, and the meanings of the settings. The date is
$SOURCE_DATE_EPOCH, so that the same sources make the same pages.
"""

import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from appliance import __version__
from appliance.cli import leaves, main
from appliance.config.load import EMBEDDED_VARIABLES, VARIABLE
from appliance.config.settings import SECTIONS, Setting, named_tables, settings

_SPECIAL = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})
FILES = {
    "/etc/appliance/config.toml": "The settings; see appliance-config(5).",
    "/var/lib/appliance": "The database, and the key that opens its secrets.",
    "/var/backups/appliance": "Where appliance-backup.timer, if it is enabled, writes a backup each night.",
    "/usr/share/doc/mail-appliance/docs": "The documentation, where the Debian package is installed.",
}
EXIT_CODES = {
    "0": "Done.",
    "1": "Refused; one line on stderr says why.",
    "2": "Wrong usage.",
    "3": "Of `upgrade --check`: something would change.",
}


def escaped(text: str) -> str:
    """Text that groff shows as it is, wherever in a line it begins."""
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in text.translate(_SPECIAL).splitlines())


def paragraphs(text: str) -> Iterator[str]:
    """A help text: paragraphs are filled, and those that click marks with a backspace are kept line by line."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield f".PP\n.nf\n{escaped(paragraph.removeprefix(chr(8)).strip(chr(10)))}\n.fi"
        else:
            yield f".PP\n{escaped(' '.join(paragraph.split()))}"


def defined(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A list of terms and what they mean."""
    for term, meaning in rows:
        yield f".TP\n\\fB{escaped(term)}\\fR\n{escaped(' '.join(meaning.split()))}"


def head(name: str, section: int, summary: str) -> Iterator[str]:
    """The title line and the section NAME."""
    moment = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    yield f'.TH {name.upper()} {section} "{moment:%Y-%m-%d}" "appliance {__version__}" "Mail appliance"'
    yield f".SH NAME\n{escaped(name)} \\- {escaped(summary)}"


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """The options of a command."""
    return defined(
        record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))
    )


def program_page() -> Iterator[str]:
    """appliance(1)."""
    context = click.Context(main, info_name="appliance")
    yield from head("appliance", 1, "self-hosted transactional-email server")
    yield ".SH SYNOPSIS\n\\fBappliance\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]..."
    yield ".SH DESCRIPTION"
    yield from paragraphs(main.help or "")
    yield ".SH OPTIONS"
    yield from options(main, context)
    yield ".SH COMMANDS"
    for name, command in leaves(main):
        inner = click.Context(command, info_name=name, parent=context)
        yield f'.SS "appliance {escaped(name)}"'
        yield f"\\fBappliance {escaped(name)}\\fR {escaped(' '.join(command.collect_usage_pieces(inner)))}"
        yield from paragraphs(command.help or "")
        yield from options(command, inner)
    yield ".SH EXIT STATUS"
    yield from defined(EXIT_CODES.items())
    yield ".SH ENVIRONMENT"
    yield from defined(
        [
            (VARIABLE, "The settings file, if --config names none."),
            ("NO_COLOR", "If it is set, the output has no colours."),
        ]
    )
    yield ".SH FILES"
    yield from defined(FILES.items())
    yield ".SH SEE ALSO\n.BR appliance\\-config (5)"


def settings_page() -> Iterator[str]:
    """appliance-config(5)."""
    yield from head("appliance-config", 5, "settings of the mail appliance")
    yield ".SH SYNOPSIS\n\\fI/etc/appliance/config.toml\\fR"
    yield ".SH DESCRIPTION"
    yield from paragraphs(
        "The settings are a TOML file. The first of these is read: the file that --config names, that of "
        f"${VARIABLE}, ./config.toml, /etc/appliance/config.toml. Without any, built-in settings for a first look "
        f"are used, which the variables {', '.join(EMBEDDED_VARIABLES)} change.\n\n"
        "A setting that is left out has its default, which is shown here behind its name. `appliance config check` "
        "says whether a file can be used, `appliance config show` what is in effect. `systemctl reload appliance` "
        "takes over what can change while the server runs; the log says what needs a restart."
    )
    for name, record in SECTIONS.items():
        yield f".SH [{escaped(name.upper())}]"
        yield from paragraphs(record.__doc__ or "")
        yield from defined(map(_row, settings(name)))
        for tables in named_tables(name):
            yield f'.SS "[{escaped(tables.place)}.NAME]"'
            yield from paragraphs(tables.record.__doc__ or "")
            yield from defined(map(_row, tables.settings("NAME")))
    yield ".SH SEE ALSO\n.BR appliance (1)"


def _row(row: Setting) -> tuple[str, str]:
    return f"{row.key} = {json.dumps(row.default, ensure_ascii=False)}", f"{row.meaning}."


def write(directory: Path) -> None:
    """Both pages."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in (("appliance.1", program_page()), ("appliance-config.5", settings_page())):
        (directory / name).write_text("\n".join(page) + "\n", "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
