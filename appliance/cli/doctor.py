"""`appliance doctor`: checks everything that mail depends on, and prints what to do."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import common, flag
from appliance.cli.output import printable, record, show, zone_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.doctor import Finding

COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}


@click.command()
@flag("--blocklists", "Also check this machine's addresses against dns.blocklists.")
@common
def doctor(blocklists: bool, as_json: bool) -> None:
    """Check everything that mail depends on, and say what to do about each fault.

    Checks port 25, host names and PTR records, the DKIM, SPF, DMARC and MX records of each domain, clock, disk,
    certificates, listeners and database. Exits with 1 if there is a fault, and with 0 if there are only warnings. The
    server may be running or not.

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
    lists, resolver = settings.dns.blocklists if blocklists else (), DnsResolver(settings.dns.resolvers)
    with database.explained(settings):
        findings = trio.run(Examination(settings, Environment(), resolver, lists).run)
    faults = sum(finding.level == "fault" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    rows = []
    for finding in findings:
        records = [record(published, "name", "type", "value") for published in finding.records]
        row = record(finding, "level", "check", "subject", "text")
        rows.append(row | {"advice": finding.advice or None, "records": records})
    answer = {"ok": not faults, "faults": faults, "warnings": warnings, "findings": rows}
    total = f"Faults: {faults}, warnings: {warnings}." if faults or warnings else "No faults and no warnings."
    show(as_json, answer, "\n".join([*lines(findings), "", total]))
    if faults:
        checks = dict.fromkeys(finding.check for finding in findings if finding.level == "fault")
        raise click.ClickException(f"faults: {', '.join(checks)}")


def lines(findings: "Sequence[Finding]") -> "Iterator[str]":
    """A table; below each finding that is not ok its advice, and its records in zone-file syntax."""
    width = max(len(finding.check) for finding in findings)
    indent = " " * (11 + width)
    for finding in findings:
        level = click.style(f"{finding.level.value:<7}", fg=COLOURS[finding.level.value])
        yield f"{level}  {finding.check:<{width}}  {printable(f'{finding.subject} {finding.text}')}"
        if finding.advice:
            yield f"{indent}{printable(finding.advice)}"
        for published in finding.records:
            yield f"{indent}  {zone_line(published.name, published.type, published.value)}"
