"""`appliance status`, `health` and `doctor`: the state of the server, and checks of what mail depends on."""

from typing import TYPE_CHECKING, Any

import click

from appliance import __version__
from appliance.cli import database
from appliance.cli.options import common, flag
from appliance.cli.output import coloured, printable, record, show, zone_line
from appliance.times import HOUR, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.config.settings import Config
    from appliance.doctor import Finding
    from appliance.store import Store

COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}
HEALTH_TIMEOUT = 5.0  # seconds between two bytes
COUNTED = ("sent", "delivered", "bounced", "failed")  # of the last hour


@click.command()
@flag("--blocklists", "Also check this machine's addresses against dns.blocklists.")
@common
def doctor(blocklists: bool, as_json: bool) -> None:
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
    from appliance.environment import Environment

    settings = database.load_settings()
    database.prepare(settings)
    lists, resolver = settings.dns.blocklists if blocklists else (), DnsResolver(settings.dns.resolvers)
    with database.explained(settings):
        findings = trio.run(Examination(settings, Environment(), resolver, lists).run)
    faults = sum(finding.level == "fault" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    answer = {"ok": not faults, "faults": faults, "warnings": warnings, "findings": [*map(_row, findings)]}
    total = f"Faults: {faults}, warnings: {warnings}." if faults or warnings else "No faults and no warnings."
    show(as_json, answer, "\n".join([*lines(findings), "", total]))
    if faults:
        checks = dict.fromkeys(finding.check for finding in findings if finding.level == "fault")
        raise click.ClickException(f"faults: {', '.join(checks)}")


def _row(finding: "Finding") -> dict[str, Any]:
    records = [record(published, "name", "type", "value") for published in finding.records]
    row = record(finding, "level", "check", "subject", "text")
    return row | {"advice": finding.advice or None, "records": records}


def lines(findings: "Sequence[Finding]") -> "Iterator[str]":
    """A table; below each finding that is not ok its advice, and its records in zone-file syntax."""
    width = max((len(finding.check) for finding in findings), default=0)
    indent = " " * (11 + width)
    for finding in findings:
        level = coloured(f"{finding.level.value:<7}", COLOURS[finding.level.value])
        yield f"{level}  {finding.check:<{width}}  {printable(f'{finding.subject} {finding.text}')}"
        if finding.advice:
            yield f"{indent}{printable(finding.advice)}"
        for published in finding.records:
            yield f"{indent}  {zone_line(published.name, published.type, published.value)}"


@click.command()
@common
def health(as_json: bool) -> None:
    """Check that the server on this machine answers; if not, print one line and exit with 1.

    The request goes to the first address of http.bind, over HTTPS if the settings enable it. The certificate is not
    verified.

    Examples:
      appliance health
      appliance health --config /etc/appliance/config.toml
    """
    import http.client
    import ssl

    from appliance.system.instance_lock import is_running

    settings = database.load_settings()
    first, data_dir = settings.http.bind[0], settings.server.data_dir
    if settings.embedded and not is_running(data_dir):
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
    show(as_json, {"address": str(first), "ok": True}, f"The server at {first} is up.")


@click.command("status")
@common
def show_status(as_json: bool) -> None:
    """Show the server on one screen: version, uptime, listeners, queue, last hour, certificate, disk and problems.

    Problems are the faults and warnings of `appliance doctor` that need no DNS. Exits with 1 if there is a fault.

    Example:
      appliance status
    """
    import trio

    from appliance.environment import Environment
    from appliance.report.explain import span
    from appliance.system.instance_lock import read_note

    settings, now = database.load_settings(), Environment().now()
    data_dir = settings.server.data_dir
    counts: dict[str, Any] = database.run(_counts, settings=settings, or_nothing={})
    findings = trio.run(_local_findings, settings)
    started_at = read_note(data_dir).get("started_at")
    answer: dict[str, Any] = {"version": __version__, "hostname": settings.server.hostname, "data_dir": str(data_dir)}
    is_running = any(finding.check == "server" and finding.level == "ok" for finding in findings)
    answer |= {"running": is_running, "started_at": started_at and rfc3339(started_at)}
    answer |= {"listeners": _texts(findings, "listener"), "queue": counts.get("queue"), "last_hour": counts.get("hour")}
    answer |= {"certificate": _texts(findings, "certificate"), "disk": _texts(findings, "disk")}
    problems = [finding for finding in findings if finding.level != "ok"]
    answer |= {"problems": [*map(_row, problems)], "ok": not any(finding.level == "fault" for finding in problems)}
    uptime = f"running for {span(now - started_at)}" if started_at else "running" if is_running else "not running"
    text = {"server": f"{__version__} on {settings.server.hostname}, {uptime}", "data": str(data_dir)}
    text |= {name: "\n            ".join(answer[key]) or "-" for name, key in (("listeners", "listeners"),)}
    if counts:
        waiting = counts["queue"]
        text["queue"] = f"{waiting['due']} due, {waiting['deferred']} deferred"
        text["last hour"] = ", ".join(f"{number} {name}" for name, number in counts["hour"].items() if name in COUNTED)
    text |= {name: "\n            ".join(answer[name]) or "-" for name in ("certificate", "disk")}
    text["problems"] = f"{len(problems)}, see below" if problems else "none"
    shown = [f"{name:<11} {value}" for name, value in text.items()]
    show(as_json, answer, "\n".join([*shown, *([""] if problems else []), *lines(problems)]))
    if not answer["ok"]:
        raise click.ClickException("mail is not delivered or not accepted: see the faults above")


def _texts(findings: "Sequence[Finding]", check: str) -> list[str]:
    return [printable(f"{finding.subject} {finding.text}") for finding in findings if finding.check == check]


async def _local_findings(settings: "Config") -> "list[Finding]":
    from appliance.dns.resolver import DnsResolver
    from appliance.doctor.examination import Examination
    from appliance.environment import Environment

    return await Examination(settings, Environment(), DnsResolver(settings.dns.resolvers)).of_server()


async def _counts(store: "Store") -> dict[str, Any]:
    """Return the queue, and the recipients since the beginning of the last full hour."""
    from collections import Counter

    from appliance.environment import Environment

    waiting, hour = await store.queue_control.totals(), Counter[str](dict.fromkeys(COUNTED, 0))
    since = Environment().now() - HOUR
    for account in await store.accounts.all():
        for (_, outcome), recipients in (await store.statistics.of(account.id, since)).by_hour.items():
            hour[outcome] += recipients
    return {"queue": record(waiting, "due", "deferred", "oldest_at"), "hour": dict(hour)}
