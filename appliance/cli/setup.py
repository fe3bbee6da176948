"""`appliance setup`: takes a new installation to accepted mail, by asking for what it needs or by options.

Each step first looks whether it is done, so the command can be run again at any time: it adds what is missing and
changes nothing that is there. The checks of the machine, which wait for DNS and for servers far away, run in a thread
from the moment its name is known: no question waits for them.
"""

import errno
import hashlib
import json
import os
import queue
import re
import secrets
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.doctor import lines
from appliance.cli.domain import domain_name, records_of, register
from appliance.cli.options import PRINTABLE, common, named_config
from appliance.cli.output import printable, record, show, system_text, zone_line
from appliance.cli.send_test import WAIT_SECONDS, queue_test, result_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.config.settings import Config
    from appliance.dns.check import CheckedRecord
    from appliance.dns.records import DnsRecord
    from appliance.doctor import Finding
    from appliance.model.accounts import Account
    from appliance.store import Store

ASK_DNS_EVERY = 5.0  # seconds between two looks at DNS
ACCOUNT_NAME = "main"
CHECKS_TIMEOUT = 30.0  # seconds for all checks of the machine
POLICY_MAX_AGE = 604_800  # seconds for which senders remember an MTA-STS policy (RFC 8461 3.2)
ADDRESS_TYPES = ("A", "AAAA", "PTR")
UNKNOWN_ADDRESS = "ADDRESS"  # what doctor says for one that it cannot know
NEW_PASSWORD_BYTES = 12  # random ones, in 16 characters that can be typed


@dataclass(frozen=True, slots=True)
class _Sender:
    """The account that is set up; its secrets only if they were made now."""

    account: str
    login: str
    password: str | None
    key: str | None


@click.command()
@click.option("--hostname", type=PRINTABLE, metavar="NAME", help="This machine's full name, as in mail.example.com.")
@click.option("--domain", type=PRINTABLE, metavar="DOMAIN", help="What stands behind the @ of your senders.")
@click.option("--email", type=PRINTABLE, metavar="ADDRESS", help="Who logs in, as an administrator.")
@click.option("--account", "name", type=PRINTABLE, metavar="NAME", help=f"The account. A new one is {ACCOUNT_NAME!r}.")
@click.option("--tls-rpt", type=PRINTABLE, metavar="ADDRESS", help="Add a record that has TLS reports sent there.")
@click.option("--mta-sts", is_flag=True, help="Add the records and the policy of MTA-STS for the return path.")
@click.option("--to", type=PRINTABLE, metavar="ADDRESS", help="Send a test message there, and tell what becomes of it.")
@click.option("--wait/--no-wait", default=None, help="Wait until DNS shows every record; on a terminal it does.")
@click.option(
    "--timeout",
    type=click.IntRange(1, 86_400),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for DNS at most.",
)
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
    """Set everything up, from the settings to a first message that arrives.

    Asks for what no option tells: the name of this machine, your domain, your address; meanwhile it looks at the
    machine (port 25, PTR, blocklists). Writes the settings, creates an account with an administrator and an API key,
    prints one zone file with all records, waits until DNS shows them, and sends a test message. Run it again at any
    time: what is right stays as it is, and secrets are shown only when they are made.

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
    settings, written = _settings(hostname, asks)
    if mta_sts and not settings.inbound.bind:
        raise click.ClickException("--mta-sts is about mail that this server takes, and inbound.bind is empty")
    machine = _Machine(settings)
    known, domains = database.run(partial(_known, name), settings=settings, create=True)
    parent = settings.server.hostname.partition(".")[2]
    default = domains[0] if domains else parent if "." in parent else ""
    shown = machine.show_found() if asks else []
    domain = domain_name(domain or (domains[0] if domains else _asked("Your domain", "--domain", default, asks)))
    shown += machine.show_found() if asks else []
    if known is None:
        email = email or _asked("Your address, to log in with", "--email", f"postmaster@{domain}", asks)
    sender = database.run(partial(_made, known, name or ACCOUNT_NAME, email or "", domain, settings), settings=settings)
    findings = machine.findings(talks=asks)
    wanted = _with_tls_reports(records_of(sender.account, domain, settings), domain, tls_rpt)
    zone = "\n".join(_zone(wanted, findings) + (_mta_sts(wanted, settings) if mta_sts else []))
    answer: dict[str, Any] = {"settings": str(settings.source), "hostname": settings.server.hostname}
    answer |= record(sender, "account", "login", "password", "key") | {"domain": domain, "zone": zone}
    answer["findings"] = [_told(each) for each in findings]
    if not as_json:
        left = [each for each in findings if each not in shown]
        click.echo("\n".join(_summary(settings, written, sender, domain, left, zone)))
    waits = asks if wait is None else wait
    checked = trio.run(_checked, settings, wanted, timeout if waits else 0, not as_json)
    answer["records"] = [record(each.record, "name", "type", "value") | record(each, "status") for each in checked]
    answer["dns_ok"] = not any(each.is_wrong for each in checked)
    if to is None and asks:
        to = click.prompt("\nSend a test message to (empty: to none)", default="", show_default=False) or None
    answer["test"] = None
    unfit: list[Finding] = []
    if to is not None and not (unfit := trio.run(check_name, settings)):
        answer["test"] = database.run(partial(_tested, sender.account, domain, to, settings), settings=settings)
    answer["findings"] += [_told(each) for each in unfit if _told(each) not in answer["findings"]]
    show(as_json, answer, "\n".join(_end(answer, unfit)))
    if waits and not answer["dns_ok"]:
        raise click.ClickException(f"DNS of {domain} is not as it should be yet")
    if to and (unfit or answer["test"]["status"] != "delivered"):
        raise click.ClickException(f"the test message was not {'sent' if unfit else 'delivered'}")


def _asked(question: str, option: str, default: str, asks: bool) -> str:
    if asks:
        return str(click.prompt(question, default=default or None))
    if not default:
        raise click.UsageError(f"Missing option '{option}'.")
    return default


def _address(text: str) -> str:
    from appliance.intake.account_rules import login_email

    with database.refusals():
        return login_email(text)


# ---- the settings


def _settings(hostname: str | None, asks: bool) -> tuple["Config", bool]:
    """The settings, with the name of this machine in them; whether they were written now."""
    from appliance.config import load
    from appliance.config.settings import ConfigError
    from appliance.config.values import is_host_name
    from appliance.system import service_plan as plan
    from appliance.system.service_steps import StepFailed, run

    named, text = named_config(), None
    try:
        if named is None and (found := load.find(None, os.environ, Path.cwd())) is not None:
            named, text = found
        file = Path(os.path.abspath(named or (load.SYSTEM_FILE if os.geteuid() == 0 else load.LOCAL_FILE)))
        if text is None:
            text = file.read_text("utf-8") if file.exists() else None
        set_already = "" if text is None else load.named_host(text, file)
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if set_already:
        if hostname and hostname != set_already:
            raise click.ClickException(f"{file}: server.hostname is {set_already} already: change it there")
        return load.parse(text or "", file), False
    machine = load.machine_name()
    default = machine if "." in machine else ""
    hostname = hostname or _asked("Full name of this machine, as in mail.example.com", "--hostname", default, asks)
    if not is_host_name(hostname) or "." not in hostname:
        raise click.ClickException(f"{hostname!r} is not a full host name such as mail.example.com")
    if text is None:
        text = plan.file("config.toml")
        if file != load.SYSTEM_FILE:
            text = text.replace(plan.HOSTNAME_LINE, f'{plan.HOSTNAME_LINE}\ndata_dir = "appliance-data"')
    try:
        _write(file, _with_hostname(text, hostname))
        settings = load.load(file, {}, Path.cwd())
    except (ConfigError, OSError) as error:
        reason = f"{error.filename}: {system_text(error)}" if isinstance(error, OSError) else str(error)
        raise click.ClickException(reason) from None
    if file == load.SYSTEM_FILE and os.geteuid() == 0 and Path("/run/systemd/system").is_dir():
        with suppress(StepFailed):  # its log says why; what follows looks whether a server runs
            run("systemctl", "try-restart", plan.UNIT).do()
    return settings, True


def _with_hostname(text: str, hostname: str) -> str:
    """The text of a settings file with this name in place of none; the rest, comments too, is as it was."""
    line = f"hostname = {json.dumps(hostname)}"
    changed, count = re.subn(r"^hostname[ \t]*=[ \t]*\"\"", line, text, count=1, flags=re.MULTILINE)
    if count:
        return changed
    changed, count = re.subn(r"^\[server\][^\n]*\n", lambda found: f"{found[0]}{line}\n", text, count=1, flags=re.M)
    return changed if count else f"[server]\n{line}\n\n{text}"


def _write(file: Path, text: str) -> None:
    """Replace the file at once, with its owner and mode; a new one is for root and the service's group."""
    import shutil

    from appliance.system.service_plan import USER

    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "w", encoding="utf-8") as new:
        new.write(text)
        new.flush()
        os.fsync(new.fileno())
    if file.exists():
        facts = file.stat()
        if os.geteuid() == 0:
            os.chown(unfinished, facts.st_uid, facts.st_gid)
        unfinished.chmod(facts.st_mode & 0o7777)
    elif os.geteuid() == 0:
        with suppress(LookupError):  # there is no such group yet
            shutil.chown(unfinished, group=USER)
    os.replace(unfinished, file)


# ---- account, key and domain


async def _known(name: str | None, store: "Store") -> "tuple[Account | None, list[str]]":
    """The account to set up, if it is there, and its domains."""
    found = [each for each in await store.accounts.all() if name in (None, each.name)]
    if len(found) > 1:
        raise click.ClickException("there are several accounts: name one with --account")
    if not found:
        return None, []
    return found[0], [each.name for each in await store.access.domains(found[0].id)]


async def _made(
    known: "Account | None", name: str, email: str, domain: str, settings: "Config", store: "Store"
) -> _Sender:
    from appliance.intake import account_rules
    from appliance.keys.passwords import hash_password
    from appliance.model.accounts import Role, Scope

    password = key = None
    if known is None:
        password = secrets.token_urlsafe(NEW_PASSWORD_BYTES)
        hashed = hash_password(password)
        wanted = account_rules.account_name(name), account_rules.login_email(email)
        known = await store.accounts.create(*wanted, hashed, Role.ADMIN, None)
    if not await store.access.keys(known.id):
        _, key = await store.access.create_key(known.id, scope=Scope.FULL, test=False)
    if domain not in [each.name for each in await store.access.domains(known.id) if each.usable]:
        await register(store, settings, known.id, domain)
    return _Sender(known.name, known.email, password, key)


# ---- the machine and DNS


class _Machine:
    """Looks at the machine in a thread of its own: its name, PTR, port 25, relays, blocklists, clock and disk."""

    def __init__(self, settings: "Config") -> None:
        self._settings, self._found, self._new = settings, list["Finding"](), queue.SimpleQueue["Finding"]()
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="machine-checks", daemon=True).start()

    def _run(self) -> None:
        import trio

        from appliance.dns.resolver import DnsResolver
        from appliance.doctor.examination import Examination
        from appliance.environment import Environment

        settings = self._settings
        try:
            resolver = DnsResolver(settings.dns.resolvers)
            looking = Examination(settings, Environment(), resolver, settings.dns.blocklists, CHECKS_TIMEOUT)
            trio.run(looking.of_machine, self._tell)
        except BaseException as error:  # raised where the findings are wanted
            self._failure = error
        finally:
            self._ended.set()

    def _tell(self, found: "list[Finding]") -> None:
        for each in found:
            self._new.put(each)

    def show_found(self) -> "list[Finding]":
        """Print what was found since the last time, and return it."""
        new = self._take()
        for line in lines(new) if new else ():
            click.echo(line)
        return new

    def findings(self, *, talks: bool) -> "list[Finding]":
        """All, in the order of a report; waits for the last ones, which have CHECKS_TIMEOUT from the start."""
        from appliance.doctor import warning
        from appliance.doctor.examination import in_order

        if talks and not self._ended.is_set():
            click.echo("Looking at this machine ...", err=True)
        in_time = self._ended.wait(CHECKS_TIMEOUT + 5)
        if self._failure is not None:
            raise self._failure
        self._take()
        late = [] if in_time else [warning("hostname", "-", f"could not be found out within {CHECKS_TIMEOUT:.0f} s")]
        return in_order([*self._found, *late])

    def _take(self) -> "list[Finding]":
        new = []
        with suppress(queue.Empty):
            while True:
                new.append(self._new.get_nowait())
        self._found += new
        return new


def _with_tls_reports(wanted: "Sequence[DnsRecord]", domain: str, address: str | None) -> "list[DnsRecord]":
    """The records, with one that has TLS reports sent to this address, if there is one."""
    from appliance.dns.records import DnsRecord, RecordKind

    if address is None:
        return list(wanted)
    value = f"v=TLSRPTv1; rua=mailto:{address}"
    purpose = "TLS reports: servers that send mail to the domain report to this address where TLS failed"
    own = DnsRecord(RecordKind.TLS_RPT, f"_smtp._tls.{domain}", value, purpose, needed=False)
    return [*(each for each in wanted if each.kind is not RecordKind.TLS_RPT), own]


def _mta_sts(wanted: "Sequence[DnsRecord]", settings: "Config") -> list[str]:
    """The records of MTA-STS for the return path, and the policy to serve (RFC 8461 3); the same each time."""
    from appliance.dns.records import RecordKind

    (name,) = [each.name for each in wanted if each.kind is RecordKind.RETURN_PATH_MX]
    host = settings.server.hostname
    policy = ["version: STSv1", "mode: testing", f"mx: {host}", f"max_age: {POLICY_MAX_AGE}"]
    identifier = hashlib.sha256("\n".join(policy).encode()).hexdigest()[:16]
    return [
        "; MTA-STS, optional: servers that send bounces use TLS, and only to the host of the policy",
        zone_line(f"_mta-sts.{name}", "TXT", f"v=STSv1; id={identifier}"),
        zone_line(f"mta-sts.{name}", "CNAME", f"{host}."),
        f"; The policy, to be served by your web server at https://mta-sts.{name}/.well-known/mta-sts.txt:",
        *(f";   {line}" for line in policy),
    ]


def _zone(wanted: "Sequence[DnsRecord]", findings: "Sequence[Finding]") -> "list[str]":
    """All records: those of the machine that are missing or wrong, and all of the domain."""
    text = []
    found = dict.fromkeys(one for each in findings for one in each.records if one.type in ADDRESS_TYPES)
    for each in found:
        line = zone_line(each.name, each.type, each.value)
        if each.type == "PTR":
            line = f"; PTR, to be ordered from the provider of this machine: {line}"
        elif each.value == UNKNOWN_ADDRESS:
            order = f"; PTR, to be ordered from the provider of this machine: that address must lead to {each.name}."
            line = f"; the public address of this machine: {line}\n{order}"
        text.append(line)
    for record_ in wanted:
        value = f"{record_.value}." if record_.type == "MX" and not record_.value.endswith(".") else record_.value
        text += [f"; {record_.purpose}", zone_line(record_.name, record_.type, value)]
    return text


async def _checked(
    settings: "Config", wanted: "Sequence[DnsRecord]", patience: float, talks: bool
) -> "list[CheckedRecord]":
    """Each record as DNS shows it, once all are right or the time is over; each that comes is told once."""
    import trio

    from appliance.dns.check import check
    from appliance.dns.records import sending_host
    from appliance.dns.resolver import DnsResolver

    deadline, right = trio.current_time() + patience, set()
    if talks and patience:
        click.echo("\nLooking in DNS until all is there (Ctrl-C ends it; run this again at any time):")
    while True:
        # A resolver that remembers nothing: what was missing may be there now.
        resolver = DnsResolver(settings.dns.resolvers)
        checked = await check(resolver, sending_host(settings), wanted, for_operator=True)
        for each in checked:
            if talks and each.status == "ok" and each.record not in right:
                click.echo(f"  {click.style('ok', fg='green')}  {each.record.name}  {each.record.type}")
            if each.status == "ok":
                right.add(each.record)
        if not any(each.is_wrong for each in checked) or trio.current_time() >= deadline:
            return checked
        await trio.sleep(min(ASK_DNS_EVERY, max(0.1, deadline - trio.current_time())))


# ---- the test message, and what is told


async def _tested(account: str, domain: str, to: str, settings: "Config", store: "Store") -> dict[str, Any]:
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
        rows["Password"] = f"{sender.password}   (shown only now)"
    if sender.key is not None:
        rows["API key"] = f"{sender.key}   (shown only now)"
    rows["Domain"] = domain
    text = [f"{title:<10} {value}" for title, value in rows.items()]
    if findings:
        text += ["", "This machine:", "", *lines(findings)]
    text += ["", f"To publish in DNS, for {domain}:", "", zone]
    return text


def _told(finding: "Finding") -> dict[str, Any]:
    return record(finding, "level", "check", "subject", "text")


def _end(answer: dict[str, Any], unfit: "Sequence[Finding]") -> list[str]:
    """What is left to do; `unfit` is what keeps the running server from sending a test message."""
    wrong = [each for each in answer["records"] if each["status"] != "ok"]
    text = [""]
    if answer["dns_ok"]:
        text.append("DNS shows all that mail needs.")
    else:
        text += ["Not yet in DNS:", *(f"  {each['name']}  {each['type']}  {each['status']}" for each in wrong)]
    if (test := answer["test"]) is not None:
        text.append(f"{test['id']} to {printable(test['to'])}: {printable(test['explanation'])}")
        if not test["server_running"]:
            text.append("No server runs here: it is sent once one does.")
    if unfit:
        text += ["No test message was sent.", *lines(unfit)]
    text.append("Run `appliance setup` again when something has changed; `appliance doctor` looks at everything.")
    return text
