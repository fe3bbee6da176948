"""`appliance setup`: sets up a new installation, from the settings to a delivered test message.

Each step is skipped if it is done, so the command can be repeated: it adds what is missing and changes nothing else.
The checks of the machine depend on DNS and remote servers. They run in a thread as soon as the host name is known, so
that no question waits for them.
"""

import hashlib
import queue
import secrets
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.doctor import lines
from appliance.cli.domain import domain_name, records_of, register
from appliance.cli.options import common, flag, number_option, text_option
from appliance.cli.output import printable, record, show, zone_line
from appliance.cli.send_test import WAIT_SECONDS, queue_test, result_of
from appliance.cli.settings_file import settings_with_hostname

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.config.settings import Config
    from appliance.dns.check import CheckedRecord
    from appliance.dns.records import DnsRecord
    from appliance.doctor import Finding
    from appliance.model.accounts import Account
    from appliance.store import Store

ASK_DNS_EVERY = 5.0  # seconds between two DNS checks
ACCOUNT_NAME = "main"
CHECKS_TIMEOUT = 30.0  # seconds for all checks of the machine
POLICY_MAX_AGE = 604_800  # seconds for which senders remember an MTA-STS policy (RFC 8461 3.2)
ADDRESS_TYPES = ("A", "AAAA", "PTR")
UNKNOWN_ADDRESS = "ADDRESS"  # doctor's placeholder for an unknown address
NEW_PASSWORD_BYTES = 12  # random; 16 characters that can be typed


@dataclass(frozen=True, slots=True)
class _Sender:
    """The account; its secrets only if this run created them."""

    account: str
    login: str
    password: str | None
    key: str | None


@click.command()
@text_option("--hostname", "NAME", "Fully qualified name of this machine, such as mail.example.com.")
@text_option("--domain", "DOMAIN", "Your sending domain.")
@text_option("--email", "ADDRESS", "Login of the administrator.")
@text_option("--account", "NAME", f"Account name (default the only account, or {ACCOUNT_NAME!r}).", "name")
@text_option("--tls-rpt", "ADDRESS", "Add a record that sends TLS reports to this address.")
@flag("--mta-sts", "Add MTA-STS records and policy for the return path.")
@text_option("--to", "ADDRESS", "Send a test message to this address and report its delivery.")
@click.option(
    "--wait/--no-wait", default=None, help="Wait until all DNS records are published (default on a terminal)."
)
@number_option("--timeout", 3600, 86_400, "Maximum time to wait for DNS.", metavar="SECONDS")
@common
def setup(
    hostname: str | None,
    domain: str | None,
    email: str | None,
    name: str | None,
    tls_rpt: str | None,
    mta_sts: bool,
    to: str | None,
    wait: bool | None,
    timeout: int,
    as_json: bool,
) -> None:
    """Set everything up, from the settings to a first delivered message.

    Asks for values that no option sets: the name of this machine, your domain, your address. Meanwhile it checks the
    machine (port 25, PTR, blocklists). Writes the settings, creates an account with an administrator and an API key,
    prints a zone file with all records, waits until they are published, and sends a test message. You can run it again
    at any time: it changes only what is missing, and shows secrets only when it creates them.

    \b
    Examples:
      sudo appliance setup
      sudo appliance setup --hostname mail.example.com --domain example.com --email you@example.com --no-wait
      sudo appliance setup --to you@example.net
    """
    import trio

    from appliance.doctor.machine import check_name

    asks = not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    tls_rpt = tls_rpt and _address(tls_rpt)
    ask = partial(_asked, asks=asks)
    settings, written = settings_with_hostname(hostname, ask)
    if mta_sts and not settings.inbound.bind:
        raise click.ClickException("--mta-sts needs a listener for inbound mail: set inbound.bind")
    machine = _Machine(settings)
    known, domains = database.run(partial(_known, name), settings=settings, create=True)
    parent = settings.server.hostname.partition(".")[2]
    default = domains[0] if domains else parent if "." in parent else ""
    shown = machine.show_new() if asks else []
    domain = domain_name(domain or (domains[0] if domains else ask("Your domain", "--domain", default)))
    shown += machine.show_new() if asks else []
    if known is None:
        email = email or ask("Your address, for the login", "--email", f"postmaster@{domain}")
    create = partial(_create, known, name or ACCOUNT_NAME, email or "", domain, settings)
    sender = database.run(create, settings=settings)
    findings = machine.findings(verbose=asks)
    records = _with_tls_reports(records_of(sender.account, domain, settings), domain, tls_rpt)
    zone = "\n".join(_zone(records, findings) + (_mta_sts(records, settings) if mta_sts else []))
    answer: dict[str, Any] = {"settings": str(settings.source), "hostname": settings.server.hostname}
    answer |= record(sender, "account", "login", "password", "key") | {"domain": domain, "zone": zone}
    answer["findings"] = [*map(_row, findings)]
    if not as_json:
        new = [finding for finding in findings if finding not in shown]
        click.echo("\n".join(_summary(settings, written, sender, domain, new, zone)))
    waits = asks if wait is None else wait
    checked = trio.run(_checked, settings, records, timeout if waits else 0, not as_json)
    answer["records"] = [record(one.record, "name", "type", "value") | record(one, "status") for one in checked]
    answer["dns_ok"] = not any(result.is_wrong for result in checked)
    if to is None and asks:
        to = click.prompt("\nSend a test message to (empty: none)", default="", show_default=False) or None
    answer["test"] = None
    unfit: list[Finding] = []
    if to is not None and not (unfit := trio.run(check_name, settings)):
        answer["test"] = database.run(partial(_send_test, sender.account, domain, to, settings), settings=settings)
    answer["findings"] += [row for row in map(_row, unfit) if row not in answer["findings"]]
    show(as_json, answer, "\n".join(_end(answer, unfit)))
    if waits and not answer["dns_ok"]:
        raise click.ClickException(f"DNS records of {domain} are not all published yet")
    if to and (unfit or answer["test"]["status"] != "delivered"):
        raise click.ClickException(f"the test message was not {'sent' if unfit else 'delivered'}")


def _asked(question: str, option: str, default: str, *, asks: bool) -> str:
    if asks:
        return str(click.prompt(question, default=default or None))
    if not default:
        raise click.UsageError(f"Missing option '{option}'.")
    return default


def _address(text: str) -> str:
    from appliance.intake.account_rules import login_email

    with database.refusals():
        return login_email(text)


# ---- account, key and domain


async def _known(name: str | None, store: "Store") -> "tuple[Account | None, list[str]]":
    """Return the account to set up, if it exists, and its domains."""
    accounts = [account for account in await store.accounts.all() if name in (None, account.name)]
    if len(accounts) > 1:
        raise click.ClickException("there are several accounts: name one with --account")
    if not accounts:
        return None, []
    return accounts[0], [domain.name for domain in await store.access.domains(accounts[0].id)]


async def _create(
    known: "Account | None", name: str, email: str, domain: str, settings: "Config", store: "Store"
) -> _Sender:
    from appliance.intake import account_rules
    from appliance.keys.secrets import hash_password
    from appliance.model.accounts import Role, Scope

    password = key = None
    if known is None:
        password = secrets.token_urlsafe(NEW_PASSWORD_BYTES)
        name, email = account_rules.account_name(name), account_rules.login_email(email)
        known = await store.accounts.create(name, email, hash_password(password), Role.ADMIN, None)
    if not await store.access.keys(known.id):
        _, key = await store.access.create_key(known.id, scope=Scope.FULL, test=False)
    if domain not in [sender.name for sender in await store.access.domains(known.id) if sender.usable]:
        await register(store, settings, known.id, domain)
    return _Sender(known.name, known.email, password, key)


# ---- the machine and DNS


class _Machine:
    """Checks the machine in a thread: its name, PTR, port 25, relays, blocklists, clock and disk."""

    def __init__(self, settings: "Config") -> None:
        self._settings, self._findings, self._new = settings, list["Finding"](), queue.SimpleQueue["Finding"]()
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="machine-checks", daemon=True).start()

    def _run(self) -> None:
        import trio

        from appliance.dns.resolver import DnsResolver
        from appliance.doctor.examination import Examination
        from appliance.environment import Environment

        dns = self._settings.dns
        try:
            resolver = DnsResolver(dns.resolvers)
            examination = Examination(self._settings, Environment(), resolver, dns.blocklists, CHECKS_TIMEOUT)
            trio.run(examination.of_machine, self._add)
        except BaseException as error:  # raised by `findings`
            self._failure = error
        finally:
            self._ended.set()

    def _add(self, findings: "list[Finding]") -> None:
        for finding in findings:
            self._new.put(finding)

    def show_new(self) -> "list[Finding]":
        """Print the findings since the last call, and return them."""
        new = self._receive()
        for line in lines(new) if new else ():
            click.echo(line)
        return new

    def findings(self, *, verbose: bool) -> "list[Finding]":
        """Wait for the checks, up to CHECKS_TIMEOUT from their start, and return all findings in report order."""
        from appliance.doctor import warning
        from appliance.doctor.examination import in_order

        if verbose and not self._ended.is_set():
            click.echo("Checking this machine ...", err=True)
        in_time = self._ended.wait(CHECKS_TIMEOUT + 5)
        if self._failure is not None:
            raise self._failure
        self._receive()
        late = [] if in_time else [warning("hostname", "-", f"no result within {CHECKS_TIMEOUT:.0f} s")]
        return in_order([*self._findings, *late])

    def _receive(self) -> "list[Finding]":
        new = []
        with suppress(queue.Empty):
            while True:
                new.append(self._new.get_nowait())
        self._findings += new
        return new


def _with_tls_reports(records: "Sequence[DnsRecord]", domain: str, address: str | None) -> "list[DnsRecord]":
    """Return the records, with one that requests TLS reports if there is an address for them."""
    from appliance.dns.records import DnsRecord, RecordKind

    if address is None:
        return list(records)
    value = f"v=TLSRPTv1; rua=mailto:{address}"
    purpose = "TLS reports: servers that send mail to the domain report failed TLS connections to this address"
    requested = DnsRecord(RecordKind.TLS_RPT, f"_smtp._tls.{domain}", value, purpose, needed=False)
    return [*(record for record in records if record.kind is not RecordKind.TLS_RPT), requested]


def _mta_sts(records: "Sequence[DnsRecord]", settings: "Config") -> list[str]:
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


def _zone(records: "Sequence[DnsRecord]", findings: "Sequence[Finding]") -> "list[str]":
    """Return a zone file: missing or wrong records of the machine, and all records of the domain."""
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


async def _checked(
    settings: "Config", records: "Sequence[DnsRecord]", patience: float, verbose: bool
) -> "list[CheckedRecord]":
    """Check the records until all are correct or the time is over; print each one once when it is correct."""
    import trio

    from appliance.dns.check import check
    from appliance.dns.records import sending_host
    from appliance.dns.resolver import DnsResolver

    deadline, correct = trio.current_time() + patience, set()
    if verbose and patience:
        click.echo("\nWaiting for the DNS records (Ctrl-C stops; you can run this again at any time):")
    while True:
        # A new resolver without a cache: a missing record may be published now.
        resolver = DnsResolver(settings.dns.resolvers)
        checked = await check(resolver, sending_host(settings), records, for_operator=True)
        for result in checked:
            if result.status == "ok" and result.record not in correct:
                correct.add(result.record)
                if verbose:
                    click.echo(f"  {click.style('ok', fg='green')}  {result.record.name}  {result.record.type}")
        if not any(result.is_wrong for result in checked) or trio.current_time() >= deadline:
            return checked
        await trio.sleep(min(ASK_DNS_EVERY, max(0.1, deadline - trio.current_time())))


# ---- the test message and the output


async def _send_test(account: str, domain: str, to: str, settings: "Config", store: "Store") -> dict[str, Any]:
    from appliance.environment import Environment

    message_id = await queue_test(store, settings, await store.accounts.named(account), to, f"test@{domain}")
    runs = await database.server_runs(store, settings)
    until = Environment().now() + WAIT_SECONDS * 1_000_000 if runs else 0
    return await result_of(store, settings, message_id, until) | {"server_running": runs}


def _summary(
    settings: "Config", written: bool, sender: _Sender, domain: str, findings: "Sequence[Finding]", zone: str
) -> list[str]:
    rows = {"Settings": f"{settings.source}{' (written)' if written else ''}", "Host name": settings.server.hostname}
    rows |= {"Account": sender.account, "Login": sender.login}
    if sender.password is not None:
        rows["Password"] = f"{sender.password}   (shown only once)"
    if sender.key is not None:
        rows["API key"] = f"{sender.key}   (shown only once)"
    rows["Domain"] = domain
    text = [f"{title:<10} {value}" for title, value in rows.items()]
    if findings:
        text += ["", "This machine:", "", *lines(findings)]
    text += ["", f"To publish in DNS, for {domain}:", "", zone]
    return text


def _row(finding: "Finding") -> dict[str, Any]:
    return record(finding, "level", "check", "subject", "text")


def _end(answer: dict[str, Any], unfit: "Sequence[Finding]") -> list[str]:
    """Return the last lines; `unfit` are the faults that prevent a test message."""
    wrong = [row for row in answer["records"] if row["status"] != "ok"]
    text = [""]
    if answer["dns_ok"]:
        text.append("All required DNS records are published.")
    else:
        text += ["Not yet in DNS:", *(f"  {row['name']}  {row['type']}  {row['status']}" for row in wrong)]
    if (test := answer["test"]) is not None:
        text.append(f"{test['id']} to {printable(test['to'])}: {printable(test['explanation'])}")
        if not test["server_running"]:
            text.append("No server is running: the message is sent once one starts.")
    if unfit:
        text += ["No test message was sent.", *lines(unfit)]
    text.append("Run `appliance setup` again after changes; `appliance doctor` checks everything.")
    return text
