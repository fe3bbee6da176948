"""`appliance suppressions …`: the addresses that an account no longer sends to, also from and to files."""

import sys
from typing import IO, TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, config_option
from appliance.cli.output import printable, progress_bar, record, show, show_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.model.mail import Suppression
    from appliance.store import Store

SUPPRESSION_COLUMNS = {"address": "ADDRESS", "origin": "ORIGIN", "reason": "REASON", "created_at": "SINCE (UTC)"}
ROWS_AT_A_TIME = 1_000
LINE_BYTES = 1_000  # of an imported line: an address and a reason


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
@database.of_only_account_and("FILE", lambda file: dict(_read(click.File("rb")(file, ctx=click.get_current_context()))))
def import_file(name: str, file: dict[str, str], as_json: bool) -> None:
    """Suppress every address of FILE (`-`: standard input) for the account NAME.

    FILE has an address a line, or is CSV whose first column is the address and whose second, if any, the reason; a
    first line without an address is taken for a heading. If a line cannot be read, nothing is imported.

    \b
    Examples:
      appliance suppressions import acme bounced.csv
      appliance suppressions export acme | appliance suppressions import other -
    """
    from appliance.model.mail import SuppressionOrigin

    async def work(store: "Store", account_id: str) -> int:
        entries, added = list(file.items()), 0
        with progress_bar("importing") as done:
            for at in range(0, len(entries), ROWS_AT_A_TIME):
                part = entries[at : at + ROWS_AT_A_TIME]
                added += await store.suppressions.add_all(account_id, part, SuppressionOrigin.IMPORT)
                done((at + len(part)) / len(entries))
        return added

    added = database.run_for(name, work)
    listed = len(file) - added
    show(
        as_json,
        {"imported": added, "listed_already": listed},
        f"Imported {added} addresses; {listed} were listed already.",
    )


@suppressions.command()
@database.of_only_account
def export(name: str, as_json: bool) -> None:
    """Write the suppressed addresses of the account NAME as CSV: address, reason, origin, since.

    Without those that have only unsubscribed from a tag or a template.

    \b
    Examples:
      appliance suppressions export acme > suppressed.csv
      appliance suppressions export acme --json
    """
    import csv

    rows = [record(each, "address", "reason", "origin", "created_at") for each in _all(name) if not each.mail_list]
    if as_json:
        show(True, {"suppressions": rows}, "")
        return
    writer = csv.DictWriter(sys.stdout, ("address", "reason", "origin", "created_at"))
    writer.writeheader()
    writer.writerows(rows)


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


def _read(file: IO[bytes]) -> "Iterator[tuple[str, str]]":
    """The addresses, each in its key form, with reasons; one line says which cannot be read."""
    import csv

    from appliance.errors import Refused
    from appliance.message.addresses import parse

    def lines() -> "Iterator[str]":
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), 1):
            if len(line) > LINE_BYTES:
                raise click.ClickException(f"line {number}: longer than {LINE_BYTES} bytes; nothing was imported")
            yield line.decode("utf-8-sig" if number == 1 else "utf-8", "replace")

    reader = csv.reader(lines())
    for row in reader:
        address = row[0].strip() if row else ""
        if not address or (reader.line_num == 1 and "@" not in address):
            continue
        try:
            key = parse(address, "address").key
        except Refused as refused:
            text = printable(refused.text)
            raise click.ClickException(f"line {reader.line_num}: {text}; nothing was imported") from None
        reason = printable(row[1].strip())[:200] if len(row) > 1 else ""
        yield key, reason or "imported"
