"""`appliance suppression …`: lists, changes, imports and exports the addresses that an account may not send to."""

import csv
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import CommandGroup, is_json, reason_option, text_option
from appliance.cli.output import printable, progress_bar, record, show, show_list

if TYPE_CHECKING:
    from appliance.message.suppression_file import SkippedLine
    from appliance.model.mail import Suppression
    from appliance.store import Store

SUPPRESSION_COLUMNS = {"address": "ADDRESS", "origin": "ORIGIN", "reason": "REASON", "created_at": "SINCE (UTC)"}
ROWS_AT_A_TIME = 1_000
LINE_BYTES = 16_000  # of an imported line; longer ones are skipped
SKIPPED_SHOWN = 20  # lines

suppression = CommandGroup("suppression", "Manage suppressions: addresses that an account may not send to.")


@suppression.command("list", reads=True)
@database.list_of_only_account
def list_all(name: str) -> None:
    """List the suppressed addresses of the account."""
    rows = [record(suppression, *SUPPRESSION_COLUMNS) for suppression in _all(name)]
    nothing = f"No address is suppressed. Add one: appliance suppression add --account {name} ADDRESS"
    show_list({"suppressions": rows}, SUPPRESSION_COLUMNS, nothing)


@suppression.command(action="suppression.added")
@database.of_only_account_and("ADDRESS")
@reason_option("added by hand", "Reason to show with the address.")
def add(name: str, address: str, reason: str) -> None:
    """Stop the account from sending to ADDRESS. An address that is already listed keeps its reason.

    Examples:
      appliance suppression add --account acme ada@example.net
      appliance suppression add --account acme ada@example.net --reason "asked us to stop"
    """
    key = _key(address)
    made = database.run_for(name, lambda store, account_id: store.suppressions.add(account_id, key, reason))
    show(record(made, *SUPPRESSION_COLUMNS), f"Account {name} may no longer send to {made.address}.")


@suppression.command(action="suppression.removed")
@text_option("--tag", "TAG", "Only undo an unsubscription from this tag.")
@text_option("--template", "ALIAS", "Only undo an unsubscription from this template.")
@text_option("--stream", "NAME", "Only undo an unsubscription from this stream.")
@database.of_only_account_and("ADDRESS")
def remove(name: str, address: str, tag: str | None, template: str | None, stream: str | None) -> None:
    """Let the account send to ADDRESS again.

    Examples:
      appliance suppression remove --account acme ada@example.net
      appliance suppression remove --account acme ada@example.net --tag news
    """
    from appliance.model.mail import lists_of

    key, lists = _key(address), lists_of([] if tag is None else [tag], template, stream)
    if len(lists) > 1:
        raise click.UsageError("Use only one of --tag, --template and --stream.")

    async def work(store: "Store", account_id: str) -> None:
        if lists:
            await store.unsubscriptions.remove(account_id, lists[0], key)
        else:
            await store.suppressions.remove(account_id, key)

    database.run_for(name, work)
    show({"address": key, "removed": True}, f"Account {name} may send to {key} again.")


@suppression.command("import", action="suppression.imported")
@database.of_only_account_and("FILE", lambda file: _read(click.File("rb")(file, ctx=click.get_current_context())))
def import_file(name: str, file: "tuple[dict[str, str], int, list[SkippedLine]]") -> None:
    """Suppress every address in FILE (`-` for standard input) for the account.

    FILE has one address per line, or is CSV as hosted services export it, with headings for address and reason. Without
    headings, the address is in the first column and the reason in the second. Invalid lines are skipped and reported.

    Examples:
      appliance suppression import --account acme bounced.csv
      appliance suppression export --account acme | appliance suppression import other -
    """
    from appliance.model.mail import SuppressionOrigin

    reasons, repeated, skipped = file

    async def work(store: "Store", account_id: str) -> int:
        entries, added = list(reasons.items()), 0
        with progress_bar("importing") as done:
            for at in range(0, len(entries), ROWS_AT_A_TIME):
                part = entries[at : at + ROWS_AT_A_TIME]
                added += await store.suppressions.add_all(account_id, part, SuppressionOrigin.IMPORT)
                done((at + len(part)) / len(entries))
        return added

    added = database.run_for(name, work)
    listed = len(reasons) - added
    lines = [{"line": entry.line, "error": printable(entry.error)} for entry in skipped]
    text = f"Imported {added} addresses; {listed} were already listed; {len(lines)} lines were skipped."
    text += f" {repeated} lines repeat another line's address." if repeated else ""
    text += "".join(f"\n  line {entry['line']}: {entry['error']}" for entry in lines[:SKIPPED_SHOWN])
    show({"imported": added, "listed_already": listed, "repeated": repeated, "skipped": lines}, text)


@suppression.command(reads=True)
@database.of_only_account
def export(name: str) -> None:
    """Write the suppressed addresses of the account as CSV: address, reason, origin, since.

    Addresses that only unsubscribed from a tag or a template are not included. A cell that a spreadsheet would read as
    a formula starts with an apostrophe, which `suppressions import` removes.

    Example:
      appliance suppression export --account acme > suppressed.csv
    """

    from appliance.message.characters import guard_cell

    fields = ("address", "reason", "origin", "created_at")
    rows = [record(suppression, *fields) for suppression in _all(name) if not suppression.mail_list]
    if is_json():
        show({"suppressions": rows}, "")
        return
    writer = csv.DictWriter(sys.stdout, fields)
    writer.writeheader()
    writer.writerows({name: guard_cell(cell) for name, cell in row.items()} for row in rows)


def _key(address: str) -> str:
    from appliance.message.addresses import parse

    with database.refusals():
        return parse(address, "address").key


def _all(name: str) -> "list[Suppression]":
    async def read(store: "Store", account_id: str) -> "list[Suppression]":
        suppressions: list[Suppression] = []
        while True:
            last = suppressions[-1] if suppressions else None
            address, mail_list = (last.address, last.mail_list) if last else ("", "")
            page = await store.suppressions.page(account_id, address, ROWS_AT_A_TIME, mail_list)
            suppressions += page
            if len(page) < ROWS_AT_A_TIME:
                return suppressions

    return database.run_for(name, read)


def _read(file: IO[bytes]) -> "tuple[dict[str, str], int, list[SkippedLine]]":
    from appliance.message.suppression_file import ROW_LENGTH, SkippedLine, read_suppressions

    def lines() -> "Iterator[str]":
        while line := file.readline(LINE_BYTES):
            text = line.decode("utf-8", "replace")
            while len(line) == LINE_BYTES and not line.endswith(b"\n"):
                line, text = file.readline(LINE_BYTES), "x" * (ROW_LENGTH + 1)  # the rest of an overlong line
            yield text

    reasons: dict[str, str] = {}
    skipped: list[SkippedLine] = []
    repeated = 0
    for entry in read_suppressions(lines()):
        if isinstance(entry, SkippedLine):
            skipped.append(entry)
        else:
            repeated += entry.address in reasons
            reasons[entry.address] = printable(entry.reason)
    return reasons, repeated, skipped
