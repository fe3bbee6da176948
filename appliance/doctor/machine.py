"""Findings on the machine itself: clock, disk, certificates, listeners, database, held pools, warm-ups. No I/O."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from appliance.acme import schedule
from appliance.config.values import MIB
from appliance.doctor.facts import (
    AcmeFacts,
    CertificateFacts,
    DatabaseFacts,
    DiskFacts,
    Finding,
    ListenerFacts,
    fault,
    ok,
    warning,
)
from appliance.model.queue import PoolHold
from appliance.model.warmup import WarmupStatus
from appliance.report.explain import clock
from appliance.store.pools import EVERY
from appliance.times import SECOND

CLOCK_TOLERANCE = 60 * SECOND  # by which a message may be newer than the clock, which may have been set meanwhile
RENEWAL_DUE = timedelta(days=14)  # before its end a certificate should have been renewed
WARMUP_LINES = 20  # there may be a pool for every domain that got mail
ACME = "acme"  # the subject of its findings

_SEE_LOG = "Look for lines of appliance.acme in the log."
_NOT_RUNNING = warning("server", "appliance", "does not run", "Start it: appliance serve")


def judge_clock(now: int, synchronised: bool | None, newest_message_at: int | None) -> list[Finding]:
    """A wrong clock makes signatures expire and tokens fail; `synchronised` is None where the system does not say."""
    if newest_message_at is not None and newest_message_at > now + CLOCK_TOLERANCE:
        behind = timedelta(microseconds=newest_message_at - now)
        text = f"is {behind} behind a message that was accepted already"
        return [fault("clock", "system", text, "Set the clock, and keep it right with NTP: timedatectl set-ntp true")]
    if synchronised is False:
        return [warning("clock", "system", "is not kept right by NTP", "timedatectl set-ntp true")]
    return [ok("clock", "system", "is kept right" if synchronised else "looks right")]


def judge_disk(facts: DiskFacts) -> list[Finding]:
    """Free space for the database: below the watermark new mail is refused."""
    subject, free = str(facts.directory), f"{facts.free // MIB:,} MiB free of {facts.total // MIB:,}"
    advice = "Make room: delete what is not needed there, or enlarge the disk."
    if facts.free < facts.refused_below:
        text = f"{free}: new mail is refused below {facts.refused_below // MIB:,} MiB"
        return [fault("disk", subject, text, advice)]
    if facts.free < 2 * facts.refused_below:
        text = f"{free}: it will be refused below {facts.refused_below // MIB:,} MiB"
        return [warning("disk", subject, text, advice)]
    return [ok("disk", subject, free)]


def judge_certificate(facts: CertificateFacts, hostname: str, now: datetime) -> list[Finding]:
    """The certificate of a listener: present, valid, for the host name, its key private."""
    key = f"{facts.section}.tls_cert"
    if facts.file is None:
        if facts.section == "http" and facts.exposed:
            text = "none, and http.bind can be reached from anywhere: passwords and keys go in the clear"
            advice = "Set http.tls_cert and http.tls_key; or put a proxy with TLS in front, and bind to 127.0.0.1."
            return [warning("certificate", key, text, advice)]
        if facts.section == "http":
            return [ok("certificate", key, "none: HTTP is for a proxy in front, or for this machine alone")]
        text = "none: a generated certificate is shown, which no client trusts by itself"
        advice = "Set smtp.tls_cert and smtp.tls_key to a certificate for the hostname."
        return [warning("certificate", key, text, advice)]
    if facts.trouble or facts.not_after is None or facts.not_before is None:
        text, advice = f"{facts.file}: {facts.trouble}", f"Set {key} and its key to a pair that fits."
        return [fault("certificate", key, text, advice)]
    found = _validity(key, facts.not_before, facts.not_after, now)
    if not any(_covers(name, hostname) for name in facts.names):
        text = f"is for {', '.join(facts.names) or 'no name'}, not for {hostname}"
        found.append(fault("certificate", key, text, f"Get one that names {hostname}."))
    if facts.key_mode & 0o007:  # a group may read it: that of the service
        advice = f"chmod o= the file of {facts.section}.tls_key"
        found.append(warning("certificate", key, "its private key can be read by other users", advice))
    return found or [ok("certificate", key, f"for {hostname} until {facts.not_after:%Y-%m-%d}")]


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


def judge_acme(facts: AcmeFacts, now: datetime) -> list[Finding]:
    """One line: none yet and why, how long it lasts, or that it should have been renewed."""
    advice = facts.advice or _SEE_LOG
    if facts.trouble:
        return [fault("certificate", ACME, f"{facts.file}: {facts.trouble}", "Run this as the server's user.")]
    if facts.not_after is None or facts.not_before is None:
        if not facts.failures:
            return [warning("certificate", ACME, "none yet: it was not requested", "Start the server.")]
        return [fault("certificate", ACME, f"none yet: {_renewal(facts)}", advice)]
    until = f"{facts.not_after:%Y-%m-%d}"
    if now > facts.not_after:
        return [fault("certificate", ACME, f"has expired on {until}: {_renewal(facts)}", advice)]
    if facts.failures:
        return [warning("certificate", ACME, f"is not renewed, and lasts until {until}: {_renewal(facts)}", advice)]
    overdue = schedule.overdue(facts.not_before.timestamp(), facts.not_after.timestamp(), facts.renew_before)
    if now.timestamp() > overdue:
        text = f"should have been renewed by now, and lasts until {until}"
        return [warning("certificate", ACME, text, "Start the server, and look at the clock.")]
    if missing := [name for name in facts.wanted if name not in facts.names]:
        text = f"is not for {', '.join(missing)} yet"
        return [warning("certificate", ACME, text, "Restart the server: it was started with other settings.")]
    return [ok("certificate", ACME, f"for {', '.join(facts.wanted)} until {until}, renewed by itself")]


def _renewal(facts: AcmeFacts) -> str:
    if not facts.failures:
        return "renewal was not tried"
    again = datetime.fromtimestamp(facts.next_try, UTC)
    return f"{facts.error} (failed {facts.failures} times, next try at {again:%Y-%m-%d %H:%M} UTC)"


def judge_listeners(running: bool, listeners: Sequence[ListenerFacts]) -> list[Finding]:
    """Whether the server runs and all its listeners answer; while it does not run, whether they could be bound."""
    judge = _running_listener if running else _stopped_listener
    found = [ok("server", "appliance", "runs")] if running else [_NOT_RUNNING]
    found += [finding for each in listeners if (finding := judge(each)) is not None]
    advice = "Name a loopback address, or one in a network that you trust."
    for each in listeners:
        if each.exposed and each.key == "metrics.bind":
            text = f"can be reached from anywhere, without a password ({each.key})"
            found.append(warning("listener", each.address, text, advice))
    return found


def _running_listener(facts: ListenerFacts) -> Finding:
    if facts.answers:
        return ok("listener", facts.address, f"answers ({facts.key})")
    advice = "Restart the server: it was started with other settings, or is overloaded."
    return fault("listener", facts.address, f"does not answer ({facts.key})", advice)


def _stopped_listener(facts: ListenerFacts) -> Finding | None:
    advice = f"Stop what listens there, or change {facts.key}."
    return fault("listener", facts.address, f"is not ours: {facts.trouble}", advice) if facts.trouble else None


def judge_database(facts: DatabaseFacts) -> list[Finding]:
    """The file, its schema, who can read it, and whether its secrets can be opened."""
    subject = str(facts.path)
    if not facts.exists:
        return [warning("database", subject, "is not there yet", "appliance account create makes it.")]
    if facts.damage:
        advice = "Restore the last good backup: appliance restore FILE --force"
        return [fault("database", subject, facts.damage, advice)]
    if facts.schema > facts.newest_schema:
        text = f"is of schema {facts.schema}, this version knows only {facts.newest_schema}"
        return [fault("database", subject, text, "Run the newer appliance.")]
    found = []
    if facts.schema < facts.newest_schema:
        text = f"is of schema {facts.schema}: it is upgraded to {facts.newest_schema} at the next start"
        found.append(warning("database", subject, text, "Make a backup first: appliance backup FILE"))
    for path in facts.open_to_others:
        found.append(fault("database", str(path), "can be read by other users", f"chmod go= {path}"))
    for domain in facts.unopened_keys:
        text = "its signing keys are sealed under another key file"
        advice = "Put back the key file of the last backup; or make new keys and publish them: appliance domain rotate."
        found.append(fault("database", domain, text, advice))
    for account in facts.unopened_secrets:
        text = "the secret of its webhook is sealed under another key file"
        advice = (
            "Put back the key file of the last backup; or have the account rotate it: POST /v1/webhook/rotate-secret."
        )
        found.append(fault("database", f"account {account}", text, advice))
    checked = "is whole" if facts.finished else "is whole as far as it was checked in the time there was"
    return found or [ok("database", subject, f"{checked}, schema {facts.schema}")]


def judge_held(holds: Iterable[PoolHold]) -> list[Finding]:
    """Pools held by the operator or by the server."""
    return [
        warning("queue", "all mail", f"is paused: {hold.reason}", "appliance resume")
        if hold.pool == EVERY
        else warning("queue", f"pool {hold.pool}", f"is held: {hold.reason}", f"appliance queue resume {hold.pool}")
        for hold in holds
    ]


def judge_warmups(warmups: Sequence[WarmupStatus], now: int) -> list[Finding]:
    """One line for each of the first pools and addresses, and a count of the others; none of them is a fault."""
    found = [
        ok("warmup", f"{each.pool} from {each.source}", _warmup_state(each, now)) for each in warmups[:WARMUP_LINES]
    ]
    if len(warmups) > WARMUP_LINES:
        found.append(ok("warmup", "other pools", f"{len(warmups) - WARMUP_LINES} more are being warmed up"))
    return found


def _warmup_state(warmup: WarmupStatus, now: int) -> str:
    waits = "" if warmup.next_at is None else f"; next at {clock(warmup.next_at, now)}"
    return f"day {warmup.day} of {warmup.days}: {warmup.per_hour} an hour, {warmup.used} used{waits}"


def today(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / SECOND, UTC)
