"""The DNS part of `appliance setup`: the zone file to publish, and waiting until DNS has its records."""

import hashlib
from typing import TYPE_CHECKING

import click

from appliance.cli.output import printable, zone_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.config.settings import Config
    from appliance.dns.check import CheckedRecord
    from appliance.dns.records import DnsRecord
    from appliance.doctor import Finding

ASK_DNS_EVERY = 5.0  # seconds between two DNS checks
POLICY_MAX_AGE = 604_800  # seconds for which senders remember an MTA-STS policy (RFC 8461 3.2)
ADDRESS_TYPES = ("A", "AAAA", "PTR")
UNKNOWN_ADDRESS = "ADDRESS"  # doctor's placeholder for an unknown address
_COLOURS = {"ok": "green", "missing": "yellow", "unknown": "yellow", "differs": "red"}


def with_tls_reports(records: "Sequence[DnsRecord]", domain: str, address: str | None) -> "list[DnsRecord]":
    """Return the records, with one that requests TLS reports if there is an address for them."""
    from appliance.dns.records import DnsRecord, RecordKind

    if address is None:
        return list(records)
    value = f"v=TLSRPTv1; rua=mailto:{address}"
    purpose = "TLS reports: servers that send mail to the domain report failed TLS connections to this address"
    requested = DnsRecord(RecordKind.TLS_RPT, f"_smtp._tls.{domain}", value, purpose, needed=False)
    return [*(record for record in records if record.kind is not RecordKind.TLS_RPT), requested]


def mta_sts_lines(records: "Sequence[DnsRecord]", settings: "Config") -> list[str]:
    """Return the MTA-STS records for the return path, and the policy to serve (RFC 8461 3); the same each time."""
    from appliance.dns.records import RecordKind

    (name,) = [record.name for record in records if record.kind is RecordKind.RETURN_PATH_MX]
    host = settings.server.hostname
    policy = ["version: STSv1", "mode: testing", f"mx: {host}", f"max_age: {POLICY_MAX_AGE}"]
    identifier = hashlib.sha256("\n".join(policy).encode()).hexdigest()[:16]
    return [
        "; MTA-STS, optional: servers that send bounces use TLS, and only to the host of the policy",
        zone_line(f"_mta-sts.{name}", "TXT", f"v=STSv1; id={identifier}"),
        zone_line(f"mta-sts.{name}", "CNAME", f"{host}."),
        f"; The policy; your web server must serve it at https://mta-sts.{name}/.well-known/mta-sts.txt:",
        *(f";   {line}" for line in policy),
    ]


def zone_lines(records: "Sequence[DnsRecord]", findings: "Sequence[Finding]") -> "list[str]":
    """Return the lines of a zone file: missing or wrong records of the machine, and all records of the domain."""
    text = []
    of_machine = dict.fromkeys(entry for finding in findings for entry in finding.records)
    for entry in of_machine:
        line = zone_line(entry.name, entry.type, entry.value)
        if entry.type not in ADDRESS_TYPES:
            continue
        if entry.type == "PTR":
            line = f"; PTR, to be ordered from the provider of this machine: {line}"
        elif entry.value == UNKNOWN_ADDRESS:
            order = f"; PTR, to be ordered from the provider of this machine: that address must lead to {entry.name}."
            line = f"; the public address of this machine: {line}\n{order}"
        text.append(line)
    for published in records:
        is_relative = published.type == "MX" and not published.value.endswith(".")
        value = f"{published.value}." if is_relative else published.value
        text += [f"; {published.purpose}", zone_line(published.name, published.type, value)]
    return text


async def wait_for_records(
    settings: "Config", domain: str, records: "Sequence[DnsRecord]", patience: float, verbose: bool
) -> "list[CheckedRecord]":
    """Check the records until all are correct or the time is over; print each one whenever its state changes."""
    import trio

    from appliance.dns.check import check
    from appliance.dns.resolver import DnsResolver

    deadline = trio.current_time() + patience
    shown: dict[DnsRecord, tuple[str, str]] = {}
    if verbose and patience:
        click.echo("\nWaiting for the DNS records (Ctrl-C stops; you can run this again at any time):")
    while True:
        # A new resolver without a cache: a missing record may be published now.
        resolver = DnsResolver(settings.dns.resolvers)
        checked = await check(resolver, records, for_operator=True)
        for result in checked if verbose and patience else ():
            if shown.get(result.record) != (result.status, result.note):
                shown[result.record] = result.status, result.note
                for line in _state_lines(domain, result):
                    click.echo(f"  {line}")
        if not any(result.is_wrong for result in checked) or trio.current_time() >= deadline:
            return checked
        await trio.sleep(min(ASK_DNS_EVERY, max(0.1, deadline - trio.current_time())))


def _state_lines(domain: str, checked: "CheckedRecord") -> "Iterator[str]":
    """One line for a record; for a wrong one also doctor's advice. The zone file above has the missing ones."""
    from appliance.doctor.domains import judge_records

    published, status = checked.record, checked.status.value
    word = click.style(f"{'wrong' if status == 'differs' else status:<7}", fg=_COLOURS[status])
    optional = "" if published.needed or status == "ok" else "  (optional)"
    note = f": {printable(checked.note)}" if checked.note else ""
    yield f"{word}  {published.name}  {published.type}{optional}{note}"
    if status == "differs":
        for finding in judge_records(domain, [checked]):
            yield f"         {printable(finding.advice)}"
            for entry in finding.records:
                yield f"           {zone_line(entry.name, entry.type, entry.value)}"
