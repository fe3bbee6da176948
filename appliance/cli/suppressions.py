"""`appliance suppressions …`: the addresses that an account no longer sends to, also from and to files."""

import sys
from typing import IO, TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, config_option
from appliance.cli.output import printable, progress_bar, record, show, show_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.message.suppression_file import SkippedLine
    from appliance.model.mail import Suppression
    from appliance.store import Store

SUPPRESSION_COLUMNS = {"address": "ADDRESS", "origin": "ORIGIN", "reason": "REASON", "created_at": "SINCE (UTC)"}
ROWS_AT_A_TIME = 1_000
LINE_BYTES = 16_000  # of an imported line; longer ones are skipped
SKIPPED_SHOWN = 20  # lines that were not imported


@click.group()
@config_option
def suppressions() -> None:
    """Suppressions: addresses that an account no longer sends to."""


@suppressions.command("list")
@database.of_only_account
def list_all(name: str, as_json: bool) -> None:
    """List the suppressed addresses of the account NAME.

    \b
    Examples:
      appliance suppressions list acme
      appliance suppressions list acme --json
    """
    rows = [record(each, *SUPPRESSION_COLUMNS) for each in _all(name)]
    nothing = f"No address is suppressed. Add one: appliance suppressions add {name} ADDRESS"
    show_list(as_json, "suppressions", rows, SUPPRESSION_COLUMNS, nothing)


@suppressions.command()
@database.of_only_account_and("ADDRESS")
@click.option("--reason", type=PRINTABLE, default="added by hand", show_default=True, help="Shown beside the address.")
def add(name: str, address: str, reason: str, as_json: bool) -> None:
    """Let the account NAME send to ADDRESS no more; an address that is listed already keeps its reason.

    \b
    Examples:
      appliance suppressions add acme ada@example.net
      appliance suppressions add acme ada@example.net --reason "asked us to stop"
    """
    key = _key(address)
    made = database.run_for(name, lambda store, account_id: store.suppressions.add(account_id, key, reason))
    show(as_json, record(made, *SUPPRESSION_COLUMNS), f"Account {name} no longer sends to {made.address}.")


@suppressions.command()
@click.option("--tag", type=PRINTABLE, metavar="TAG", help="Only messages with this tag, which it unsubscribed from.")
@click.option("--template", type=PRINTABLE, metavar="ALIAS", help="Only those of this template, likewise.")
@database.of_only_account_and("ADDRESS")
def remove(name: str, address: str, tag: str | None, template: str | None, as_json: bool) -> None:
    """Let the account NAME send to ADDRESS again.

    \b
    Examples:
      appliance suppressions remove acme ada@example.net
      appliance suppressions remove acme ada@example.net --tag news
    """
    if tag is not None and template is not None:
        raise click.UsageError("Give --tag or --template, not both.")
    from appliance.model.mail import lists_of

    key, lists = _key(address), lists_of([] if tag is None else [tag], template)

    async def work(store: "Store", account_id: str) -> None:
        if lists:
            await store.unsubscriptions.remove(account_id, lists[0], key)
        else:
            await store.suppressions.remove(account_id, key)

    database.run_for(name, work)
    show(as_json, {"address": key, "removed": True}, f"Account {name} may send to {key} again.")


@suppressions.command("import")
@database.of_only_account_and("FILE", lambda file: _read(click.File("rb")(file, ctx=click.get_current_context())))
def import_file(name: str, file: "tuple[dict[str, str], list[SkippedLine]]", as_json: bool) -> None:
    """Suppress every address of FILE (`-`: standard input) for the account NAME.

    FILE has an address a line, or is CSV as hosted services export it: the heading tells where address and reason are.
    Without a heading the address is the first column, the reason the second. What cannot be read is skipped and told.

    \b
    Examples:
      appliance suppressions import acme bounced.csv
      appliance suppressions export acme | appliance suppressions import other -
    """
    from appliance.model.mail import SuppressionOrigin

    found, skipped = file

    async def work(store: "Store", account_id: str) -> int:
        entries, added = list(found.items()), 0
        with progress_bar("importing") as done:
            for at in range(0, len(entries), ROWS_AT_A_TIME):
                part = entries[at : at + ROWS_AT_A_TIME]
                added += await store.suppressions.add_all(account_id, part, SuppressionOrigin.IMPORT)
                done((at + len(part)) / len(entries))
        return added

    added = database.run_for(name, work)
    listed = len(found) - added
    lines = [{"line": each.line, "error": printable(each.error)} for each in skipped]
    text = f"Imported {added} addresses; {listed} were listed already; {len(lines)} lines were skipped."
    text += "".join(f"\n  line {each['line']}: {each['error']}" for each in lines[:SKIPPED_SHOWN])
    show(as_json, {"imported": added, "listed_already": listed, "skipped": lines}, text)


@suppressions.command()
@database.of_only_account
def export(name: str, as_json: bool) -> None:
    """Write the suppressed addresses of the account NAME as CSV: address, reason, origin, since.

    Without those that have only unsubscribed from a tag or a template. A cell that a spreadsheet would take for a
    formula begins with an apostrophe, which `suppressions import` removes.

    \b
    Examples:
      appliance suppressions export acme > suppressed.csv
      appliance suppressions export acme --json
    """
    import csv

    from appliance.message.characters import guard_cell

    rows = [record(each, "address", "reason", "origin", "created_at") for each in _all(name) if not each.mail_list]
    if as_json:
        show(True, {"suppressions": rows}, "")
        return
    writer = csv.DictWriter(sys.stdout, ("address", "reason", "origin", "created_at"))
    writer.writeheader()
    writer.writerows({name: guard_cell(cell) for name, cell in row.items()} for row in rows)


def _key(address: str) -> str:
    from appliance.message.addresses import parse

    with database.refusals():
        return parse(address, "address").key


def _all(name: str) -> "list[Suppression]":
    return database.run_for(name, _of)


async def _of(store: "Store", account_id: str) -> "list[Suppression]":
    found: list[Suppression] = []
    while True:
        after = (found[-1].address, found[-1].mail_list) if found else ("", "")
        page = await store.suppressions.page(account_id, after[0], ROWS_AT_A_TIME, after[1])
        found += page
        if len(page) < ROWS_AT_A_TIME:
            return found


def _read(file: IO[bytes]) -> "tuple[dict[str, str], list[SkippedLine]]":
    """The addresses, each in its key form, with reasons; and the lines that cannot be read."""
    from appliance.message.suppression_file import ROW_LENGTH, SkippedLine, read_suppressions

    def lines() -> "Iterator[str]":
        while line := file.readline(LINE_BYTES):
            text = line.decode("utf-8", "replace")
            while len(line) == LINE_BYTES and not line.endswith(b"\n"):
                line, text = file.readline(LINE_BYTES), "x" * (ROW_LENGTH + 1)  # the rest of an overlong one
            yield text

    found: dict[str, str] = {}
    skipped: list[SkippedLine] = []
    for each in read_suppressions(lines()):
        if isinstance(each, SkippedLine):
            skipped.append(each)
        else:
            found[each.address] = printable(each.reason)
    return found, skipped
