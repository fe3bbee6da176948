"""`appliance doctor`: whether this machine is fit to send mail, and what to do."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import common
from appliance.cli.output import printable, record, show, zone_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.doctor import Finding

COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}


@click.command()
@click.option("--blocklists", is_flag=True, help="Also ask the blocklists of dns.blocklists about our addresses.")
@common
def doctor(blocklists: bool, as_json: bool) -> None:
    """Look at everything that mail depends on, and tell what to do where it is not right.

    Port 25, names and reverse names, each domain's DKIM, SPF, DMARC and MX as DNS shows them, clock, disk,
    certificates, listeners, database. Exits with 1 when there is a fault; warnings alone are 0. The server may be
    running or not.

    \b
    Examples:
      appliance doctor
      appliance doctor --blocklists
      appliance doctor --json
    """
    import trio

    from appliance.dns.resolver import DnsResolver
    from appliance.doctor.examination import Examination
    from appliance.environment import Environment

    settings = database.load_settings()
    database.prepare(settings)
    asked = settings.dns.blocklists if blocklists else ()
    with database.explained(settings):
        found = trio.run(Examination(settings, Environment(), DnsResolver(settings.dns.resolvers), asked).run)
    faults = sum(each.level == "fault" for each in found)
    warnings = sum(each.level == "warning" for each in found)
    rows = [
        record(each, "level", "check", "subject", "text")
        | {"advice": each.advice or None, "records": [record(one, "name", "type", "value") for one in each.records]}
        for each in found
    ]
    answer = {"ok": not faults, "faults": faults, "warnings": warnings, "findings": rows}
    total = f"Faults: {faults}, warnings: {warnings}." if faults or warnings else "Everything is as it should be."
    show(as_json, answer, "\n".join([*lines(found), "", total]))
    if faults:
        where = dict.fromkeys(each.check for each in found if each.level == "fault")
        raise click.ClickException(f"faults were found: {', '.join(where)}")


def lines(found: "Sequence[Finding]") -> "Iterator[str]":
    """A table, and below each finding that is not ok what to do, with the records as a zone file has them."""
    checks = max(len(each.check) for each in found)
    for each in found:
        level = click.style(f"{each.level.value:<7}", fg=COLOURS[each.level.value])
        yield f"{level}  {each.check:<{checks}}  {printable(f'{each.subject} {each.text}')}"
        before = " " * (11 + checks)
        if each.advice:
            yield f"{before}{printable(each.advice)}"
        for wanted in each.records:
            yield f"{before}  {zone_line(wanted.name, wanted.type, wanted.value)}"
