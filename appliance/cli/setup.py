"""`appliance setup`: sets up a new installation, from the settings to a delivered test message.

Each step is skipped if it is done, so the command can be repeated: it adds what is missing, and changes answers that
differ. Settings are written first, because root's privileges are dropped before the database is opened.
The checks of the machine depend on DNS and remote servers. They run in a thread as soon as the host name is known, so
that no question waits for them.
"""

import os
import secrets
import sys
import threading
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from msgspec import Struct
from msgspec.structs import replace

from appliance.cli import database
from appliance.cli.domain import domain_name, proposed, records_of, register, zone_summary
from appliance.cli.options import common, flag, is_json, number_option, text_option
from appliance.cli.output import coloured, printable, record, show
from appliance.cli.send_test import WAIT_SECONDS, queue_test, result_of
from appliance.cli.settings_file import SettingsFile, has_systemd
from appliance.cli.setup_records import mta_sts_lines, wait_for_records, with_tls_reports, zone_lines
from appliance.cli.status import lines
from appliance.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from appliance.config.settings import Config
    from appliance.doctor import Finding
    from appliance.model.accounts import Account
    from appliance.store import Store

ACCOUNT_NAME = "main"
CHECKS_TIMEOUT = 30.0  # seconds for all checks of the machine
STOPPED = "Setup stopped. Completed steps are kept; run `appliance setup` again to continue."
NEW_PASSWORD_BYTES = 12  # random; 16 characters that can be typed

_FULL_NAME = "Full name of this machine, such as mail.example.com"


class _Sender(Struct, frozen=True):
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
@click.option(
    "--acme/--no-acme",
    default=None,
    help="Get and renew a certificate from Let's Encrypt (default: keep the setting). Port 80 must be reachable.",
)
@click.option("--warmup/--no-warmup", default=None, help="Limit mail at first (default: keep the setting).")
@click.option("--backup-timer/--no-backup-timer", default=None, help="Back up every night (default: keep the timer).")
@text_option("--tls-rpt", "ADDRESS", "Add a record that sends TLS reports to this address.")
@flag("--mta-sts", "Add MTA-STS records and policy for the return path.")
@text_option("--to", "ADDRESS", "Send a test message to this address and report its delivery.")
@click.option(
    "--wait/--no-wait", default=None, help="Wait until all DNS records are published (default on a terminal)."
)
@number_option("--timeout", 3600, 86_400, "Maximum time to wait for DNS.", metavar="SECONDS")
@common
def setup(**options: Any) -> None:
    """Set everything up, from the settings to a first delivered message.

    Asks for values that no option sets: the name of this machine, your domain, your address. Meanwhile it checks the
    machine (port 25, PTR, blocklists). Writes the settings, creates an account with an administrator and an API key,
    prints a zone file with all records, waits until they are published, and sends a test message. You can run it again
    at any time: it adds what is missing, changes the answers that differ, and shows secrets only when it creates them.

    Examples:
      sudo appliance setup
      sudo appliance setup --hostname mail.example.com --domain example.com --email you@example.com --no-wait
      sudo appliance setup --to you@example.net
    """
    try:
        _set_up(**options)
    except (KeyboardInterrupt, click.Abort, BaseExceptionGroup) as error:
        if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is None:
            raise
        click.echo(f"\n{STOPPED}", err=True)
        raise click.exceptions.Exit(130) from None


def _set_up(
    hostname: str | None,
    domain: str | None,
    email: str | None,
    name: str | None,
    acme: bool | None,
    warmup: bool | None,
    backup_timer: bool | None,
    tls_rpt: str | None,
    mta_sts: bool,
    to: str | None,
    wait: bool | None,
    timeout: int,
) -> None:
    import trio

    from appliance.doctor.machine import check_name
    from appliance.system.data_directory import system_user

    asks = not is_json() and sys.stdin.isatty() and sys.stdout.isatty()
    tls_rpt = tls_rpt and _address(tls_rpt)
    ask = partial(_asked, asks=asks)
    file = SettingsFile()
    user = os.environ.get("SUDO_USER") or system_user(os.getuid())  # before the privileges are dropped
    parse = partial(_host_name, file.hostname)
    _write_settings(file, ask(hostname, _FULL_NAME, "--hostname", _default_name(file), parse), acme, warmup, asks)
    settings = file.settings()
    _set_backup_timer(settings, backup_timer, asks)
    if mta_sts and not settings.inbound.bind:
        raise click.ClickException("--mta-sts needs a listener for inbound mail: set inbound.bind")
    machine = _Machine(settings)
    known, domains = database.run(partial(_known, name), settings=settings, create=True)
    parent = settings.server.hostname.partition(".")[2]
    default = domains[0] if domains else parent if "." in parent else ""
    shown = machine.show_new() if asks else []
    domain = ask(domain, "Your domain", "--domain", default, domain_name)
    shown += machine.show_new() if asks else []
    default = f"postmaster@{domain}" if known is None else known.email
    email = ask(email, "Your address, for the login", "--email", default, _address)
    create = partial(_create, known, name or ACCOUNT_NAME, email, domain, settings)
    sender = database.run(create, settings=settings)
    findings = machine.findings(verbose=asks)
    raw = with_tls_reports(records_of(sender.account, domain, settings), domain, tls_rpt)
    records, dns_zone = proposed(settings, domain, raw)
    lines = [] if dns_zone is None else [f"; {zone_summary(dns_zone)}"]
    lines += zone_lines(records, findings) + (mta_sts_lines(records, settings) if mta_sts else [])
    zone = "\n".join(lines)
    answer: dict[str, Any] = {"settings": str(settings.source), "hostname": settings.server.hostname}
    answer |= record(sender, "account", "login", "password", "key") | {"domain": domain, "zone": zone}
    answer |= {"dashboard": f"{settings.http.base_url}/dashboard", "findings": [*map(_row, findings)]}
    if not is_json():
        new = [finding for finding in findings if finding not in shown]
        click.echo("\n".join(_summary(settings, file.written, sender, domain, new, zone)))
    waits = asks if wait is None else wait
    try:
        checked = trio.run(wait_for_records, settings, domain, records, timeout if waits else 0, not is_json())
    except (KeyboardInterrupt, BaseExceptionGroup):  # Ctrl-C: all other steps are done
        click.echo("\n".join(["", *_dashboard(answer, settings, user)]), err=True)
        raise
    answer["records"] = [record(one.record, "name", "type", "value") | record(one, "status") for one in checked]
    answer["dns_ok"] = not any(result.is_wrong for result in checked)
    if to is None and asks:
        to = (
            ask(None, "\nSend a test message to (empty: none)", "--to", "", lambda text: text and _address(text))
            or None
        )
    answer["test"] = None
    unfit: list[Finding] = []
    if to is not None and not (unfit := trio.run(check_name, settings)):
        answer["test"] = database.run(partial(_send_test, sender.account, domain, to, settings), settings=settings)
    answer["findings"] += [row for row in map(_row, unfit) if row not in answer["findings"]]
    show(answer, "\n".join(_end(answer, unfit, settings, user)))
    if waits and not answer["dns_ok"]:
        raise click.ClickException(f"DNS records of {domain} are not all published yet")
    if to and (unfit or answer["test"]["status"] != "delivered"):
        raise click.ClickException(f"the test message was not {'sent' if unfit else 'delivered'}")


# ---- questions and settings
def _asked(
    option: str | None, question: str, name: str, default: str, parse: "Callable[[str], str]", *, asks: bool
) -> str:
    """Return the parsed value of an option, or an answer; a person is asked again after a wrong answer."""
    if option is not None or not asks:
        if not option and not default:
            raise click.UsageError(f"Missing option '{name}'.")
        return parse(option or default)
    while True:
        try:
            return parse(str(click.prompt(question, default=default, show_default=bool(default))))
        except click.ClickException as error:
            click.echo(f"{coloured('Error', 'red')}: {error.message}. Try again.")


def _default_name(file: SettingsFile) -> str:
    from appliance.config.load import machine_name

    machine = machine_name()
    return file.hostname or (machine if "." in machine else "")


def _host_name(current: str, text: str) -> str:
    from appliance.config.values import is_host_name

    if text != current and (not is_host_name(text) or "." not in text):
        raise click.ClickException(f"{text!r} is not a full host name such as mail.example.com")
    return text


def _write_settings(file: SettingsFile, hostname: str, acme: bool | None, warmup: bool | None, asks: bool) -> None:
    """Write the host name, and offer a certificate and warm-up; restart the service if anything changed."""
    if hostname != file.hostname:
        file.change("server", hostname=hostname)
    try:
        _offer_settings(file, acme, warmup, asks)
    finally:
        file.restart_service()


def _offer_settings(file: SettingsFile, acme: bool | None, warmup: bool | None, asks: bool) -> None:
    settings = file.settings()
    if acme is None and asks and not settings.smtp.tls_cert:
        host = settings.server.hostname
        click.echo(f"\nA certificate for {host}: Let's Encrypt issues it free of charge, and the server renews it.")
        click.echo("Port 80 of this machine must be reachable from the internet. Yes accepts the authority's terms.")
        acme = click.confirm("Get a certificate", default=settings.acme.enabled)
    if acme is not None and acme != settings.acme.enabled:
        # Behind a proxy or on loopback, HTTP stays plain.
        file.change("acme", enabled=acme, **({"http": False} if acme and _is_local(settings) else {}))
    if warmup is None and asks:
        click.echo("\nWarm-up: receivers distrust an address that has sent no mail before and suddenly sends much.")
        limit = settings.warmup.first_hour
        click.echo(f"The server sends at most {limit} messages an hour to each provider at first, and queues the rest.")
        warmup = click.confirm("Warm this address up", default=settings.warmup.enabled)
    if warmup is not None and warmup != settings.warmup.enabled:
        file.change("warmup", enabled=warmup)


def _is_local(settings: "Config") -> bool:
    """Whether only this machine reaches the HTTP API."""
    return all(ip_address(endpoint.host).is_loopback for endpoint in settings.http.bind)


def _set_backup_timer(settings: "Config", enable: bool | None, asks: bool) -> None:
    """Enable or disable the nightly backup; offered where systemd has the timer and the database is embedded."""
    from appliance.system.service import BACKUP_TIMER, StepFailed, run

    def runs(*words: str) -> bool:
        try:
            run("systemctl", *words, BACKUP_TIMER).do()
        except StepFailed:
            return False
        return True

    if not has_systemd() or settings.store.url or not runs("cat"):
        if enable:
            raise click.ClickException("--backup-timer needs root, systemd, its installed timer and no store.url")
        return
    enabled = runs("is-enabled")
    if enable is None and asks:
        click.echo()
        enable = click.confirm("Back up every night to /var/backups/appliance", default=True)
    if enable is not None and enable != enabled and not runs("enable" if enable else "disable", "--now"):
        raise click.ClickException(f"could not change the backup timer: see `systemctl status {BACKUP_TIMER}`")


def _address(text: str) -> str:
    from appliance.intake.account_rules import login_email

    with database.refusals():
        return login_email(text).lower()


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
    if known is not None and email != known.email:
        await store.people.set_email(known.email, email)
        known = replace(known, email=email)
    if known is None:
        password = secrets.token_urlsafe(NEW_PASSWORD_BYTES)
        name = account_rules.account_name(name)
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
        self._settings, self._findings = settings, list["Finding"]()
        self._shown = 0  # findings
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="machine-checks", daemon=True).start()

    def _run(self) -> None:
        import trio

        from appliance.dns.resolver import DnsResolver
        from appliance.doctor.examination import Examination

        dns = self._settings.dns
        try:
            resolver = DnsResolver(dns.resolvers)
            examination = Examination(self._settings, Environment(), resolver, dns.blocklists, CHECKS_TIMEOUT)
            trio.run(examination.of_machine, self._findings.extend)
        except BaseException as error:  # raised by `findings`
            self._failure = error
        finally:
            self._ended.set()

    def show_new(self) -> "list[Finding]":
        new = self._findings[self._shown :]
        self._shown += len(new)
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
        late = [] if in_time else [warning("hostname", "-", f"no result within {CHECKS_TIMEOUT:.0f} s")]
        return in_order([*self._findings, *late])


# ---- the test message and the output
async def _send_test(account: str, domain: str, to: str, settings: "Config", store: "Store") -> dict[str, Any]:
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


def _end(answer: dict[str, Any], unfit: "Sequence[Finding]", settings: "Config", user: str) -> list[str]:
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
    text += ["", *_dashboard(answer, settings, user)]
    text.append("Run `appliance setup` again after changes; `appliance doctor` checks everything.")
    return text


def _dashboard(answer: dict[str, Any], settings: "Config", user: str) -> list[str]:
    """The dashboard's URL, and how to reach it from another machine if it listens only on this one."""
    text = [f"Dashboard  {answer['dashboard']}"]
    if _is_local(settings) and (urlsplit(answer["dashboard"]).hostname or "") in (
        "localhost",
        settings.http.bind[0].host,
    ):
        port = settings.http.bind[0].port
        tunnel = f"ssh -L {port}:{settings.http.bind[0]} {user}@{answer['hostname']}"
        text.append(f"           from your laptop: {tunnel}, then open http://localhost:{port}/dashboard")
    return text
