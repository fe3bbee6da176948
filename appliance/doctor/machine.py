"""Checks of the machine: clock, disk, certificates, listeners, database, paused pools, warm-ups, complaint rates."""

import ctypes
import errno
import os
import shutil
import ssl
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import trio
from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from appliance.acme import schedule
from appliance.acme.records import AcmeState, read_files
from appliance.config.settings import Config
from appliance.config.values import MIB, Endpoint
from appliance.doctor import Finding, fault, ok, warning
from appliance.errors import error_text
from appliance.keys.keyfile import KEY_FILE
from appliance.model.feedback import ComplaintRate
from appliance.model.numbers import COMPLAINT_MARKS, COMPLAINTS_JUDGED_FROM, RateMark, mark
from appliance.model.queue import PoolHold
from appliance.model.sources import pool_and_source
from appliance.model.warmup import WarmupStatus
from appliance.net.local_addresses import bind_error, binds
from appliance.report.explain import clock
from appliance.store import FILE_NAME as DATABASE
from appliance.store import QuickCheck, newest_known
from appliance.store.pools import EVERY
from appliance.system.data_directory import is_running
from appliance.system.service import start_advice
from appliance.times import DAY, SECOND
from appliance.tls.certificate import ACME_FILE, acme_directory, tls_context

CLOCK_TOLERANCE = 60 * SECOND  # a message may be newer than the clock by this much: the clock may have been set since
RENEWAL_DUE = timedelta(days=14)  # before expiry a certificate should be renewed
LISTENER_TIMEOUT = 3.0  # seconds for a listener on this machine to accept a connection, and to greet
BANNER_BYTES = 512  # of a greeting, which is one line
TIMEX = 512  # bytes, more than adjtimex(2) writes
UNSYNCHRONISED = 5  # TIME_ERROR
WARMUP_LINES = 20  # there may be a pool for every recipient domain
ACME = "acme"  # the subject of its findings

COMPLAINTS_SINCE = 7 * DAY

_SEE_LOG = "See the lines of appliance.acme in the log."
_WITH_NTP = "timedatectl set-ntp true (for a container: on its host)"
_UNVERIFIED = ssl.create_default_context()  # to read the greeting of a server on this machine
_UNVERIFIED.check_hostname, _UNVERIFIED.verify_mode = False, ssl.CERT_NONE


def check_clock(now: int, newest_message_at: int | None) -> list[Finding]:
    """A wrong clock makes signatures expire and tokens fail."""
    if newest_message_at is not None and newest_message_at > now + CLOCK_TOLERANCE:
        behind = timedelta(microseconds=newest_message_at - now)
        text = f"is {behind} behind the newest message"
        return [fault("clock", "system", text, f"Set the clock, and synchronise it with NTP: {_WITH_NTP}")]
    is_synchronised = synchronised()
    if is_synchronised is False:
        return [warning("clock", "system", "is not synchronised with NTP", _WITH_NTP)]
    return [ok("clock", "system", "is synchronised" if is_synchronised else "is plausible")]


def synchronised() -> bool | None:
    """Whether the kernel's clock is synchronised; None if that is unknown."""
    c_library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(c_library, "adjtimex"):
        return None
    state = c_library.adjtimex(ctypes.create_string_buffer(TIMEX))  # zeroed: it only reads
    return None if state < 0 else state != UNSYNCHRONISED


def check_disk(config: Config) -> list[Finding]:
    """Check the free space for the database. With too little, the server refuses new mail."""
    directory, limits = config.server.data_dir, config.limits
    usage = shutil.disk_usage(next(path for path in (directory, *directory.parents) if path.exists()))
    below = max(limits.min_free_disk, usage.total * limits.min_free_disk_percent // 100) if limits.min_free_disk else 0
    subject, free = str(directory), f"{usage.free // MIB:,} MiB free of {usage.total // MIB:,}"
    advice = "Free space, or enlarge the disk."
    if usage.free < below:
        return [fault("disk", subject, f"{free}: new mail is refused below {below // MIB:,} MiB", advice)]
    if usage.free < 2 * below:
        return [warning("disk", subject, f"{free}: new mail will be refused below {below // MIB:,} MiB", advice)]
    return [ok("disk", subject, free)]


# ---- certificates
def check_certificate(config: Config, section: str, now: datetime) -> list[Finding]:
    """Check a listener's certificate: present, valid, for the host name, its key private."""
    settings, hostname, subject = getattr(config, section), config.server.hostname, f"{section}.tls_cert"
    if settings.tls_cert is None or settings.tls_key is None:
        return [_no_certificate(subject, config, section)]
    chain, key = settings.tls_cert, settings.tls_key
    try:
        leaf = x509.load_pem_x509_certificates(chain.read_bytes())[0]
        tls_context(chain, key)
        mode = key.stat().st_mode & 0o777
    except (OSError, ValueError) as error:
        why = "they do not match, are not PEM, or the key is encrypted"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):  # whose texts name source lines
            why = error_text(error)
        text = f"{chain}: cannot be used with its key {key}: {why}"
        return [fault("certificate", subject, text, f"Set {subject} and its key to a matching pair.")]
    names, findings = _names(leaf), _validity(subject, leaf.not_valid_before_utc, leaf.not_valid_after_utc, now)
    parent = hostname[hostname.find(".") :]  # RFC 6125 6.4.3: a star matches one label, the first
    if not {hostname, f"*{parent}"} & {name.lower() for name in names}:
        text = f"is for {', '.join(names) or 'no name'}, not for {hostname}"
        findings.append(fault("certificate", subject, text, f"Get a certificate for {hostname}."))
    if mode & 0o007:  # a group may read it: that of the service
        advice = f"chmod o= the file of {section}.tls_key"
        findings.append(warning("certificate", subject, "its private key can be read by other users", advice))
    return findings or [ok("certificate", subject, f"for {hostname} until {leaf.not_valid_after_utc:%Y-%m-%d}")]


def _no_certificate(subject: str, config: Config, section: str) -> Finding:
    if section == "smtp":
        text = "none: the server uses a generated certificate, which clients do not trust"
        advice = "Set smtp.tls_cert and smtp.tls_key to a certificate for the host name, or enable [acme]."
        return warning("certificate", subject, text, advice)
    if any(map(is_exposed, config.http.bind)):
        text = "none, and http.bind is reachable from anywhere: passwords and keys are sent in clear text"
        advice = "Set http.tls_cert and http.tls_key; or use a proxy with TLS, and bind to 127.0.0.1 "
        advice += "(for a container, publish the port there)."
        return warning("certificate", subject, text, advice)
    return ok("certificate", subject, "none: HTTP is for a proxy, or for this machine only")


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = leaf.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return tuple(str(name.value) for name in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
    if not isinstance(extension, x509.SubjectAlternativeName):
        return ()
    addresses = extension.get_values_for_type(x509.IPAddress)
    return (*extension.get_values_for_type(x509.DNSName), *map(str, addresses))


def _validity(key: str, not_before: datetime, not_after: datetime, now: datetime) -> list[Finding]:
    if now > not_after:
        return [fault("certificate", key, f"expired on {not_after:%Y-%m-%d}", "Renew it.")]
    if now < not_before:
        return [fault("certificate", key, f"is valid only from {not_before:%Y-%m-%d}", "Check the clock.")]
    if now > not_after - RENEWAL_DUE:
        advice = "Renew it, and automate the renewal."
        return [warning("certificate", key, f"expires on {not_after:%Y-%m-%d}", advice)]
    return []


def check_acme(config: Config, now: datetime) -> list[Finding]:
    directory, names = acme_directory(config), config.acme.names
    try:
        (directory / ACME_FILE).open("rb").close()
    except FileNotFoundError:
        pass
    except OSError as error:
        text = f"{directory / ACME_FILE}: {error_text(error)}"
        return [fault("certificate", ACME, text, "Run this as the server's user.")]
    state, held = read_files(directory)
    advice = state.advice or _SEE_LOG
    if held is None or held.self_signed:
        if not state.failures:
            return [warning("certificate", ACME, "none yet: it was not requested", "Start the server.")]
        return [fault("certificate", ACME, f"none yet: {_renewal(state)}", advice)]
    until = f"{datetime.fromtimestamp(held.not_after, UTC):%Y-%m-%d}"
    if now.timestamp() > held.not_after:
        return [fault("certificate", ACME, f"expired on {until}: {_renewal(state)}", advice)]
    if state.failures:
        return [warning("certificate", ACME, f"expires on {until} and is not renewed: {_renewal(state)}", advice)]
    if now.timestamp() > schedule.overdue(held.not_before, held.not_after, config.acme.renew_before):
        text = f"expires on {until} and should have been renewed"
        return [warning("certificate", ACME, text, "Start the server, and check the clock.")]
    if missing := [name for name in names if name not in held.names]:
        text = f"is not for {', '.join(missing)} yet"
        return [warning("certificate", ACME, text, "Restart the server: it was started with other settings.")]
    return [ok("certificate", ACME, f"for {', '.join(names)} until {until}, renewed automatically")]


def _renewal(state: AcmeState) -> str:
    if not state.failures:
        return "no renewal was attempted"
    again = datetime.fromtimestamp(max(state.next_try, state.not_before), UTC)
    return f"{state.error} (failed {state.failures} times, next attempt at {again:%Y-%m-%d %H:%M} UTC)"


# ---- listeners
async def check_listeners(config: Config) -> list[Finding]:
    """Check that the server runs and its listeners answer; if it does not run, that their addresses are free."""
    running = is_running(config.server.data_dir)
    text = "is not running: it accepts and delivers no mail"
    stopped = None if running else fault("server", "appliance", text, start_advice(config))
    findings, exposed = [stopped or ok("server", "appliance", "is running")], []
    for key, address in binds(config):
        if not address.port:
            continue  # any free port
        if running and await _answers(address):
            findings.append(ok("listener", str(address), f"answers ({key})"))
        elif running:
            advice = "Restart the server: it was started with other settings, or is overloaded."
            findings.append(fault("listener", str(address), f"does not answer ({key})", advice))
        # EACCES: the server may be allowed to listen there, unlike this user.
        elif (code := bind_error(address)) not in (None, errno.EACCES):
            text = f"cannot be used: {os.strerror(code).lower()}"
            findings.append(fault("listener", str(address), text, f"Stop the program that uses it, or change {key}."))
        if key == "metrics.bind" and is_exposed(address):
            text = f"is reachable from anywhere without a password ({key})"
            advice = "Use a loopback address, or one in a trusted network."
            exposed.append(warning("listener", str(address), text, advice))
    return findings + exposed


async def check_name(config: Config) -> list[Finding]:
    """Return a fault if the running server greets with another name than the settings: it started before the change."""
    if not is_running(config.server.data_dir):
        return []
    listeners = [(bind, False) for bind in config.smtp.bind] + [(bind, True) for bind in config.smtp.bind_tls]
    for address, tls in listeners:
        match (await _banner(address, tls=tls)).split():
            case ["220", name, *_] if name != config.server.hostname:
                text = f"runs with older settings: it calls itself {name}, not {config.server.hostname}"
                advice = "Restart the server or its container: it reads its name only at start."
                return [fault("server", "appliance", text, advice)]
            case ["220", *_]:
                break
    return []


async def _answers(address: Endpoint) -> bool:
    try:
        with trio.fail_after(LISTENER_TIMEOUT):
            await (await _dial(address)).aclose()
    except (trio.TooSlowError, OSError):
        return False
    return True


async def _banner(address: Endpoint, *, tls: bool) -> str:
    try:
        with trio.fail_after(LISTENER_TIMEOUT):
            async with await _dial(address) as plain:
                stream = trio.SSLStream(plain, _UNVERIFIED) if tls else plain
                return bytes(await stream.receive_some(BANNER_BYTES)).decode("ascii", "replace")
    except (trio.TooSlowError, trio.BrokenResourceError, OSError):
        return ""


async def _dial(address: Endpoint) -> trio.SocketStream:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - dialled, not bound
    return await trio.open_tcp_stream(host, address.port)


def is_exposed(address: Endpoint) -> bool:
    """Whether an address is reachable from anywhere: all addresses, or a public one."""
    try:
        host = ip_address(address.host)
    except ValueError:
        return False  # a name, such as localhost
    return host.is_unspecified or host.is_global


# ---- the database
def judge_database(
    data_dir: Path, looked: QuickCheck | None, unopened_keys: Sequence[str], unopened_secrets: Sequence[str]
) -> list[Finding]:
    """Check the file, its schema, its permissions, and whether the key file opens all secrets."""
    subject, newest = str(data_dir / DATABASE), newest_known()
    if looked is None:
        return [warning("database", subject, "does not exist yet", "appliance account create makes it.")]
    if looked.damage:
        advice = "Restore the last good backup: appliance restore FILE --force"
        return [fault("database", subject, looked.damage, advice)]
    if looked.schema > newest:
        text = f"has schema {looked.schema}, this version knows only {newest}"
        return [fault("database", subject, text, "Run the newer appliance.")]
    findings = []
    if looked.schema < newest:
        text = f"has schema {looked.schema}: the next start upgrades it to {newest}"
        findings.append(warning("database", subject, text, "Make a backup first: appliance backup FILE"))
    findings += judge_modes(data_dir, data_dir / DATABASE, data_dir / KEY_FILE)
    findings += judge_secrets(unopened_keys, unopened_secrets)
    checked = "is intact" if looked.finished else "is intact as far as it was checked in time"
    return findings or [ok("database", subject, f"{checked}, schema {looked.schema}")]


def judge_modes(*paths: Path) -> list[Finding]:
    return [
        fault("database", str(path), "can be read by other users", f"chmod go= {path}")
        for path in paths
        if path.exists() and path.stat().st_mode & 0o077
    ]


def judge_secrets(unopened_keys: Sequence[str], unopened_secrets: Sequence[str]) -> list[Finding]:
    findings = []
    for domain in unopened_keys:
        text = "its signing keys are sealed with another key file"
        advice = "Restore the key file from the last backup; or publish new keys: appliance domain rotate."
        findings.append(fault("database", domain, text, advice))
    for account in unopened_secrets:
        text = "its webhook secret is sealed with another key file"
        advice = "Restore the key file from the last backup; or rotate the secret: POST /v1/webhook/rotate-secret."
        findings.append(fault("database", f"account {account}", text, advice))
    return findings


def judge_held(holds: Iterable[PoolHold]) -> list[Finding]:
    """Return a warning for each pool that the operator or the server paused; a pause of all mail is a fault."""
    findings = []
    for hold in holds:
        if hold.pool == EVERY:
            findings.append(fault("queue", "all mail", f"is paused: {hold.reason}", "appliance resume"))
        else:
            text, advice = f"is held{hold.by_node}: {hold.reason}", f"appliance queue resume {hold.pool}"
            pool, source = pool_and_source(hold.pool)
            if source:
                text = f"is out for the source {source}{hold.by_node}: {hold.reason}"
            findings.append(warning("queue", f"pool {pool}", text, advice))
    return findings


def judge_warmups(warmups: Sequence[WarmupStatus], now: int) -> list[Finding]:
    """List the first warm-ups, and count the others; a warm-up is never a fault."""
    findings = []
    for warmup in warmups[:WARMUP_LINES]:
        next_at = "" if warmup.next_at is None else f"; next at {clock(warmup.next_at, now)}"
        text = f"day {warmup.day} of {warmup.days}: {warmup.per_hour} an hour, {warmup.used} used{next_at}"
        findings.append(ok("warmup", f"{warmup.pool} from {warmup.source}", text))
    if len(warmups) > WARMUP_LINES:
        findings.append(ok("warmup", "other pools", f"{len(warmups) - WARMUP_LINES} more are being warmed up"))
    return findings


def judge_complaints(rates: Iterable[ComplaintRate]) -> list[Finding]:
    """Return a finding for each provider with complaints and enough delivered mail."""
    findings, advice = [], "Send only mail that recipients requested, and let them unsubscribe with one click."
    advice += " Above 0.3 % large providers reject mail."
    for provider in rates:
        rating = mark(provider.complaints, provider.delivered, COMPLAINT_MARKS, COMPLAINTS_JUDGED_FROM)
        if rating is RateMark.TOO_FEW or not provider.complaints:
            continue
        rate = provider.complaints / provider.delivered
        subject = provider.provider or "other providers"
        text = f"{provider.complaints:,} complaints of {provider.delivered:,} delivered in 7 days: {rate:.2%}"
        level = fault if rating is RateMark.TOO_HIGH else warning
        is_high = rating is not RateMark.GOOD
        findings.append(level("complaints", subject, text, advice) if is_high else ok("complaints", subject, text))
    return findings
