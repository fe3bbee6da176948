"""Checks of the machine itself: clock, disk, certificates, listeners, database, held pools, warm-ups."""

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
from appliance.acme.files import AcmeFiles, AcmeState
from appliance.config.settings import Config
from appliance.config.values import MIB, Endpoint
from appliance.doctor import Finding, fault, ok, warning
from appliance.errors import error_text
from appliance.keys.keyfile import KEY_FILE
from appliance.model.queue import PoolHold
from appliance.model.warmup import WarmupStatus
from appliance.net.local_addresses import bind_error, binds
from appliance.report.explain import clock
from appliance.store import FILE_NAME as DATABASE
from appliance.store import QuickCheck, newest_known
from appliance.store.pools import EVERY
from appliance.system.instance_lock import is_running
from appliance.times import SECOND
from appliance.tls.certificate import tls_context
from appliance.tls.certificate_files import acme_directory

CLOCK_TOLERANCE = 60 * SECOND  # by which a message may be newer than the clock, which may have been set meanwhile
RENEWAL_DUE = timedelta(days=14)  # before its end a certificate should have been renewed
LISTENER_TIMEOUT = 3.0  # seconds for a listener on this machine to accept a connection, and to greet
BANNER_BYTES = 512  # read of a greeting, which is one line
TIMEX = 512  # bytes, more than adjtimex(2) writes
UNSYNCHRONISED = 5  # TIME_ERROR
WARMUP_LINES = 20  # there may be a pool for every domain that got mail
ACME = "acme"  # the subject of its findings

_SEE_LOG = "Look for lines of appliance.acme in the log."
_WITH_NTP = "timedatectl set-ntp true (for a container: on its host)"
_UNVERIFIED = ssl.create_default_context()  # to read the greeting of a server on this machine
_UNVERIFIED.check_hostname, _UNVERIFIED.verify_mode = False, ssl.CERT_NONE
_NOT_RUNNING = warning("server", "appliance", "does not run", "Start it: appliance serve")


def check_clock(now: int, newest_message_at: int | None) -> list[Finding]:
    """A wrong clock makes signatures expire and tokens fail."""
    if newest_message_at is not None and newest_message_at > now + CLOCK_TOLERANCE:
        behind = timedelta(microseconds=newest_message_at - now)
        text = f"is {behind} behind a message that was accepted already"
        return [fault("clock", "system", text, f"Set the clock, and keep it right with NTP: {_WITH_NTP}")]
    kept_right = synchronised()
    if kept_right is False:
        return [warning("clock", "system", "is not kept right by NTP", _WITH_NTP)]
    return [ok("clock", "system", "is kept right" if kept_right else "looks right")]


def synchronised() -> bool | None:
    """Whether the kernel's clock is being kept right; None where it does not say."""
    c_library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(c_library, "adjtimex"):
        return None
    state = c_library.adjtimex(ctypes.create_string_buffer(TIMEX))  # zeroed: it only reads
    return None if state < 0 else state != UNSYNCHRONISED


def check_disk(config: Config) -> list[Finding]:
    """Free space for the database, or in the nearest directory above that exists: too little, and mail is refused."""
    directory, limits = config.server.data_dir, config.limits
    usage = shutil.disk_usage(next(each for each in (directory, *directory.parents) if each.exists()))
    below = max(limits.min_free_disk, usage.total * limits.min_free_disk_percent // 100) if limits.min_free_disk else 0
    subject, free = str(directory), f"{usage.free // MIB:,} MiB free of {usage.total // MIB:,}"
    advice = "Make room: delete what is not needed there, or enlarge the disk."
    if usage.free < below:
        return [fault("disk", subject, f"{free}: new mail is refused below {below // MIB:,} MiB", advice)]
    if usage.free < 2 * below:
        return [warning("disk", subject, f"{free}: it will be refused below {below // MIB:,} MiB", advice)]
    return [ok("disk", subject, free)]


# ---- certificates


def check_certificate(config: Config, section: str, now: datetime) -> list[Finding]:
    """The certificate of a listener: present, valid, for the host name, its key private."""
    settings, hostname, subject = getattr(config, section), config.server.hostname, f"{section}.tls_cert"
    if settings.tls_cert is None or settings.tls_key is None:
        return [_no_certificate(subject, config, section)]
    chain: Path = settings.tls_cert
    key: Path = settings.tls_key
    try:
        leaf = x509.load_pem_x509_certificates(chain.read_bytes())[0]
        tls_context(chain, key)
        mode = key.stat().st_mode & 0o777
    except (OSError, ValueError) as error:
        why = "they do not fit together, are not PEM, or the key is encrypted"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):  # whose texts name source lines
            why = error_text(error)
        text = f"{chain}: cannot be used with its key {key}: {why}"
        return [fault("certificate", subject, text, f"Set {subject} and its key to a pair that fits.")]
    names, found = _names(leaf), _validity(subject, leaf.not_valid_before_utc, leaf.not_valid_after_utc, now)
    if not any(_covers(name, hostname) for name in names):
        text = f"is for {', '.join(names) or 'no name'}, not for {hostname}"
        found.append(fault("certificate", subject, text, f"Get one that names {hostname}."))
    if mode & 0o007:  # a group may read it: that of the service
        advice = f"chmod o= the file of {section}.tls_key"
        found.append(warning("certificate", subject, "its private key can be read by other users", advice))
    return found or [ok("certificate", subject, f"for {hostname} until {leaf.not_valid_after_utc:%Y-%m-%d}")]


def _no_certificate(subject: str, config: Config, section: str) -> Finding:
    if section == "smtp":
        text = "none: a generated certificate is shown, which no client trusts by itself"
        advice = "Set smtp.tls_cert and smtp.tls_key to a certificate for the hostname."
        return warning("certificate", subject, text, advice)
    if any(map(is_exposed, config.http.bind)):
        text = "none, and http.bind can be reached from anywhere: passwords and keys go in the clear"
        advice = "Set http.tls_cert and http.tls_key; or put a proxy with TLS in front, and bind to 127.0.0.1 "
        advice += "(of a container, publish the port there)."
        return warning("certificate", subject, text, advice)
    return ok("certificate", subject, "none: HTTP is for a proxy in front, or for this machine alone")


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = leaf.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return tuple(str(each.value) for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
    if not isinstance(extension, x509.SubjectAlternativeName):
        return ()
    addresses = extension.get_values_for_type(x509.IPAddress)
    return (*extension.get_values_for_type(x509.DNSName), *map(str, addresses))


def _validity(key: str, not_before: datetime, not_after: datetime, now: datetime) -> list[Finding]:
    if now > not_after:
        return [fault("certificate", key, f"has expired on {not_after:%Y-%m-%d}", "Renew it.")]
    if now < not_before:
        return [fault("certificate", key, f"is valid only from {not_before:%Y-%m-%d}", "Look at the clock.")]
    if now > not_after - RENEWAL_DUE:
        advice = "Renew it, and let that be done by itself."
        return [warning("certificate", key, f"expires on {not_after:%Y-%m-%d}", advice)]
    return []


def _covers(name: str, hostname: str) -> bool:
    """RFC 6125 6.4.3: a star stands for one label, the first."""
    name = name.lower()
    return name == hostname or (name.startswith("*.") and name[1:] == hostname[hostname.find(".") :])


def check_acme(config: Config, now: datetime) -> list[Finding]:
    """The certificate that ACME renews: none yet and why, how long it lasts, or that it should have been renewed."""
    files, wanted = AcmeFiles(acme_directory(config)), config.acme.names
    try:
        files.certificate.open("rb").close()
    except FileNotFoundError:
        pass
    except OSError as error:
        text = f"{files.certificate}: {error_text(error)}"
        return [fault("certificate", ACME, text, "Run this as the server's user.")]
    state, held = files.state(), files.held()
    advice = state.advice or _SEE_LOG
    if held is None or held.self_signed:
        if not state.failures:
            return [warning("certificate", ACME, "none yet: it was not requested", "Start the server.")]
        return [fault("certificate", ACME, f"none yet: {_renewal(state)}", advice)]
    until = f"{datetime.fromtimestamp(held.not_after, UTC):%Y-%m-%d}"
    if now.timestamp() > held.not_after:
        return [fault("certificate", ACME, f"has expired on {until}: {_renewal(state)}", advice)]
    if state.failures:
        return [warning("certificate", ACME, f"is not renewed, and lasts until {until}: {_renewal(state)}", advice)]
    if now.timestamp() > schedule.overdue(held.not_before, held.not_after, config.acme.renew_before):
        text = f"should have been renewed by now, and lasts until {until}"
        return [warning("certificate", ACME, text, "Start the server, and look at the clock.")]
    if missing := [name for name in wanted if name not in held.names]:
        text = f"is not for {', '.join(missing)} yet"
        return [warning("certificate", ACME, text, "Restart the server: it was started with other settings.")]
    return [ok("certificate", ACME, f"for {', '.join(wanted)} until {until}, renewed by itself")]


def _renewal(state: AcmeState) -> str:
    if not state.failures:
        return "renewal was not tried"
    again = datetime.fromtimestamp(max(state.next_try, state.not_before), UTC)
    return f"{state.error} (failed {state.failures} times, next try at {again:%Y-%m-%d %H:%M} UTC)"


# ---- listeners


async def check_listeners(config: Config) -> list[Finding]:
    """Whether the server runs and all its listeners answer; while it does not run, whether they could be bound."""
    running = is_running(config.server.data_dir)
    found, exposed = [ok("server", "appliance", "runs")] if running else [_NOT_RUNNING], []
    for key, address in binds(config):
        if not address.port:
            continue  # any free one
        if running and await _answers(address):
            found.append(ok("listener", str(address), f"answers ({key})"))
        elif running:
            advice = "Restart the server: it was started with other settings, or is overloaded."
            found.append(fault("listener", str(address), f"does not answer ({key})", advice))
        # The server may be allowed to listen there where this user is not.
        elif (code := bind_error(address)) not in (None, errno.EACCES):
            text, advice = f"is not ours: {os.strerror(code).lower()}", f"Stop what listens there, or change {key}."
            found.append(fault("listener", str(address), text, advice))
        if key == "metrics.bind" and is_exposed(address):
            text = f"can be reached from anywhere, without a password ({key})"
            advice = "Name a loopback address, or one in a network that you trust."
            exposed.append(warning("listener", str(address), text, advice))
    return found + exposed


async def check_name(config: Config) -> list[Finding]:
    """Nothing, unless the running server greets with another name than the settings': it was started before these."""
    if not is_running(config.server.data_dir):
        return []
    listeners = [(each, False) for each in config.smtp.bind] + [(each, True) for each in config.smtp.bind_tls]
    for address, tls in listeners:
        match (await _banner(address, tls=tls)).split():
            case ["220", name, *_] if name != config.server.hostname:
                text = f"runs with older settings: it calls itself {name}, not {config.server.hostname}"
                advice = "Restart it (in a container: restart that), for it takes a new name only when it starts."
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
    """The line that a mail server begins with; "" without one."""
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
    """Whether it is bound to all addresses or a public one, so that it can be reached from anywhere."""
    try:
        host = ip_address(address.host)
    except ValueError:
        return False  # a name, such as localhost
    return host.is_unspecified or host.is_global


# ---- the database


def judge_database(
    data_dir: Path, looked: QuickCheck | None, unopened_keys: Sequence[str], unopened_secrets: Sequence[str]
) -> list[Finding]:
    """The file, its schema, who can read it, and the domains and accounts whose secrets the key file does not open."""
    subject, newest = str(data_dir / DATABASE), newest_known()
    if looked is None:
        return [warning("database", subject, "is not there yet", "appliance account create makes it.")]
    if looked.damage:
        advice = "Restore the last good backup: appliance restore FILE --force"
        return [fault("database", subject, looked.damage, advice)]
    if looked.schema > newest:
        text = f"is of schema {looked.schema}, this version knows only {newest}"
        return [fault("database", subject, text, "Run the newer appliance.")]
    found = []
    if looked.schema < newest:
        text = f"is of schema {looked.schema}: it is upgraded to {newest} at the next start"
        found.append(warning("database", subject, text, "Make a backup first: appliance backup FILE"))
    found += judge_modes(data_dir, data_dir / DATABASE, data_dir / KEY_FILE)
    found += judge_secrets(unopened_keys, unopened_secrets)
    checked = "is whole" if looked.finished else "is whole as far as it was checked in the time there was"
    return found or [ok("database", subject, f"{checked}, schema {looked.schema}")]


def judge_modes(*paths: Path) -> list[Finding]:
    """Files and directories that other users can read."""
    return [
        fault("database", str(path), "can be read by other users", f"chmod go= {path}")
        for path in paths
        if path.exists() and path.stat().st_mode & 0o077
    ]


def judge_secrets(unopened_keys: Sequence[str], unopened_secrets: Sequence[str]) -> list[Finding]:
    """Domains and accounts whose secrets the key file does not open."""
    found = []
    for domain in unopened_keys:
        text = "its signing keys are sealed under another key file"
        advice = "Put back the key file of the last backup; or make new keys and publish them: appliance domain rotate."
        found.append(fault("database", domain, text, advice))
    for account in unopened_secrets:
        text = "the secret of its webhook is sealed under another key file"
        advice = (
            "Put back the key file of the last backup; or have the account rotate it: POST /v1/webhook/rotate-secret."
        )
        found.append(fault("database", f"account {account}", text, advice))
    return found


def judge_held(holds: Iterable[PoolHold]) -> list[Finding]:
    """Pools held by the operator or by the server."""
    return [
        warning("queue", "all mail", f"is paused: {hold.reason}", "appliance resume")
        if hold.pool == EVERY
        else warning(
            "queue", f"pool {hold.pool}", f"is held{hold.by_node}: {hold.reason}", f"appliance queue resume {hold.pool}"
        )
        for hold in holds
    ]


def judge_warmups(warmups: Sequence[WarmupStatus], now: int) -> list[Finding]:
    """One line for each of the first pools and addresses, and a count of the others; none of them is a fault."""
    found = []
    for each in warmups[:WARMUP_LINES]:
        waits = "" if each.next_at is None else f"; next at {clock(each.next_at, now)}"
        text = f"day {each.day} of {each.days}: {each.per_hour} an hour, {each.used} used{waits}"
        found.append(ok("warmup", f"{each.pool} from {each.source}", text))
    if len(warmups) > WARMUP_LINES:
        found.append(ok("warmup", "other pools", f"{len(warmups) - WARMUP_LINES} more are being warmed up"))
    return found
