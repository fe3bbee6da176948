"""`appliance status`, `health` and `doctor`: the state of the server, and checks of what mail depends on."""

import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from appliance import __version__
from appliance.cli import database
from appliance.cli.options import Command, common, flag
from appliance.cli.output import coloured, folded, printable, record, show, zone_line
from appliance.environment import Environment
from appliance.system.data_directory import is_running, read_note
from appliance.times import HOUR, rfc3339

if TYPE_CHECKING:
    from appliance.doctor import Finding
    from appliance.model.queue import PoolHold
    from appliance.store import Store

    _Stored = tuple[dict[str, Any], Sequence[PoolHold], int | None]

COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}
HEALTH_TIMEOUT = 5.0  # seconds between two bytes


@click.command()
@flag("--blocklists", "Also check this machine's addresses against dns.blocklists.")
@common
def doctor(blocklists: bool) -> None:
    """Check everything that mail depends on, and say what to do about each fault.

    Checks port 25, host names and PTR records, the DKIM, SPF, DMARC and MX records of each domain, clock, disk,
    certificates, listeners and database. Exits with 1 if there is a fault, such as a stopped server, and with 0 if
    there are only warnings.

    Examples:
      appliance doctor
      appliance doctor --blocklists
    """
    import trio

    from appliance.dns.resolver import DnsResolver
    from appliance.doctor.examination import Examination

    settings = database.load_settings()
    database.prepare(settings)
    lists, resolver = settings.dns.blocklists if blocklists else (), DnsResolver(settings.dns.resolvers)
    with database.explained(settings):
        findings = trio.run(Examination(settings, Environment(), resolver, lists).run)
    faults = sum(finding.level == "fault" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    answer = {"ok": not faults, "faults": faults, "warnings": warnings, "findings": [*map(_row, findings)]}
    total = f"Faults: {faults}, warnings: {warnings}." if faults or warnings else "No faults and no warnings."
    show(answer, "\n".join([*lines(findings), "", total]))
    if faults:
        checks = dict.fromkeys(finding.check for finding in findings if finding.level == "fault")
        raise click.ClickException(f"faults: {', '.join(checks)}")


def _row(finding: "Finding") -> dict[str, Any]:
    records = [record(published, "name", "type", "value") for published in finding.records]
    row = record(finding, "level", "check", "subject", "text")
    return row | {"advice": finding.advice or None, "records": records}


def lines(findings: "Sequence[Finding]") -> "Iterator[str]":
    """A table; below each finding that is not ok its advice, and its records in zone-file syntax.

    Neither is folded: both are to be copied.
    """
    width = max((len(finding.check) for finding in findings), default=0)
    indent = " " * (11 + width)
    for finding in findings:
        level = coloured(f"{finding.level.value:<7}", COLOURS[finding.level.value])
        text = printable(f"{finding.subject} {finding.text}")
        yield f"{level}  {finding.check:<{width}}  {folded(text, len(indent))}"
        if finding.advice:
            yield f"{indent}{printable(finding.advice)}"
        for published in finding.records:
            yield f"{indent}  {zone_line(published.name, published.type, published.value)}"


@click.command()
@common
def health() -> None:
    """Check that the server on this machine answers; if not, print one line and exit with 1.

    The request goes to the first address of http.bind, over HTTPS if the settings enable it. The certificate is not
    verified.

    Examples:
      appliance health
      appliance health --config /etc/appliance/config.toml
    """
    import http.client

    settings = database.load_settings()
    first, data_dir = settings.http.bind[0], settings.server.data_dir
    if settings.embedded and not read_note(data_dir):
        raise click.ClickException(f"no server runs on {data_dir}: start it with `appliance serve`")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(first.host, first.host)  # noqa: S104 - compared, not bound
    connection = http.client.HTTPConnection(host, first.port, timeout=HEALTH_TIMEOUT)
    if settings.http.tls_cert or (settings.acme.enabled and settings.acme.http):
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, first.port, timeout=HEALTH_TIMEOUT, context=unverified)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise click.ClickException(f"the server does not answer at {first}: {error}") from None
    finally:
        connection.close()
    if status != http.client.OK:
        raise click.ClickException(f"the server at {first} is not ready: HTTP status {status}")
    show({"address": str(first), "ok": True}, f"The server at {first} is up.")


@click.command("status", cls=Command, reads=True)
@common
def show_status() -> None:
    """Show the server on one screen: version, uptime, listeners, queue, last hour, certificate, disk and problems.

    Problems are the faults and warnings of `appliance doctor` that need no DNS. Exits with 1 if there is a fault.
    """
    import trio

    from appliance.dns.resolver import DnsResolver
    from appliance.doctor.examination import Examination
    from appliance.report.explain import span

    settings, now = database.load_settings(), Environment().now()
    data_dir, hostname = settings.server.data_dir, settings.server.hostname
    counts, holds, newest_at = database.run(
        _stored, settings=settings, or_nothing=lambda: ({"queue": None, "last_hour": None}, [], None)
    )
    examination = Examination(settings, Environment(), DnsResolver(settings.dns.resolvers))
    findings = trio.run(examination.of_server, holds, newest_at)
    texts = {
        check: [printable(f"{finding.subject} {finding.text}") for finding in findings if finding.check == check]
        for check in ("listener", "certificate", "disk")
    }
    problems = [finding for finding in findings if finding.level != "ok"]
    runs, started_at = is_running(data_dir), read_note(data_dir).get("started_at")
    answer = {"version": __version__, "hostname": hostname, "data_dir": str(data_dir), "running": runs}
    answer |= {"started_at": started_at and rfc3339(started_at), "listeners": texts["listener"], **counts}
    answer |= {"certificate": texts["certificate"], "disk": texts["disk"], "problems": [*map(_row, problems)]}
    answer["ok"] = not any(finding.level == "fault" for finding in problems)
    uptime = f"running for {span(now - started_at)}" if started_at else "running" if runs else "not running"
    rows = [("server", f"{__version__} on {hostname}, {uptime}"), ("data", data_dir)]
    rows += [("listeners" if not number else "", text) for number, text in enumerate(texts["listener"] or ["-"])]
    if counts["queue"]:
        queue = counts["queue"]
        amounts = f"{queue['due']} due, {queue['deferred']} deferred, {queue['scheduled']} scheduled"
        rows.append(("queue", amounts))
        rows.append(("last hour", ", ".join(f"{count} {number}" for number, count in counts["last_hour"].items())))
    rows += [(check, text) for check in ("certificate", "disk") for text in texts[check]]
    rows.append(("problems", len(problems) or "none"))
    shown = [f"{title:<11} {folded(str(value), 12)}" for title, value in rows]
    show(answer, "\n".join([*shown, *([""] if problems else []), *lines(problems)]))
    if not answer["ok"]:
        raise click.ClickException("the faults above stop mail")


async def _stored(store: "Store") -> "_Stored":
    """Return the queue, the recipients since the beginning of the last full hour, pauses, and the newest message."""

    from appliance.model.numbers import COUNTED

    waiting, hour = await store.queue_control.totals(), Counter[str]()
    since = store.statistics.env.now() - HOUR
    for account in await store.accounts.all():
        for (_, outcome), recipients in (await store.statistics.of(account.id, since)).by_hour.items():
            hour[outcome] += recipients
    queue = record(waiting, "due", "deferred", "oldest_at") | {"scheduled": await store.scheduled.count()}
    counts = {"queue": queue, "last_hour": {outcome: hour[outcome] for outcome in COUNTED}}
    return counts, await store.pools.all_holds(), await store.messages.newest_at()
