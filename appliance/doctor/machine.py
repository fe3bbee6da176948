"""In charge of judging the machine itself: clock, disk, certificates, listeners, database, mail that is held. PURE."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from appliance.doctor.facts import (
    CertificateFacts,
    ClockFacts,
    DatabaseFacts,
    DiskFacts,
    HeldFacts,
    ListenerFacts,
)
from appliance.doctor.finding import Finding, fault, ok, warning
from appliance.store.pools import EVERY
from appliance.times import SECOND

AHEAD = 60 * SECOND  # that a message may be ahead of the clock: it was set by a little meanwhile
SOON = timedelta(days=14)  # a certificate that ends within this should have been renewed
MIB = 1024 * 1024


def judge_clock(facts: ClockFacts) -> list[Finding]:
    """A wrong clock makes signatures expire and tokens fail."""
    newest = facts.newest_message_at
    if newest is not None and newest > facts.now + AHEAD:
        behind = timedelta(microseconds=newest - facts.now)
        text = f"is {behind} behind a message that was accepted already"
        return [fault("clock", "system", text, "Set the clock, and keep it right with NTP: timedatectl set-ntp true")]
    if facts.synchronised is False:
        return [warning("clock", "system", "is not kept right by NTP", "timedatectl set-ntp true")]
    return [ok("clock", "system", "is kept right" if facts.synchronised else "looks right")]


def judge_disk(facts: DiskFacts) -> list[Finding]:
    """Space for the database: below the watermark new mail is refused."""
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
    """What a listener shows to prove who it is."""
    key = f"{facts.section}.tls_cert"
    if facts.file is None:
        if facts.section == "http" and facts.exposed:
            text = "none, and http.bind can be reached from anywhere: passwords and keys go in the clear"
            advice = "Set http.tls_cert and http.tls_key; or put a proxy with TLS in front, and bind to 127.0.0.1."
            return [warning("certificate", key, text, advice)]
        if facts.section == "http":
            return [ok("certificate", key, "none: HTTP is for a proxy in front, or for this machine alone")]
        text = "none: a generated certificate is shown, which no client trusts by itself"
        return [
            warning("certificate", key, text, "Set smtp.tls_cert and smtp.tls_key to a certificate for the hostname.")
        ]
    if facts.trouble or facts.not_after is None or facts.not_before is None:
        return [
            fault(
                "certificate",
                key,
                f"{facts.file}: {facts.trouble}",
                f"Set {key} and its key to a pair that fits.",
            )
        ]
    found = list(_dates(facts, key, now))
    if not any(_covers(name, hostname) for name in facts.names):
        text = f"is for {', '.join(facts.names) or 'no name'}, not for {hostname}"
        found.append(fault("certificate", key, text, f"Get one that names {hostname}."))
    if facts.key_mode & 0o007:  # a group may read it: that of the service
        advice = f"chmod o= the file of {facts.section}.tls_key"
        found.append(warning("certificate", key, "its private key can be read by other users", advice))
    return found or [ok("certificate", key, f"for {hostname} until {facts.not_after:%Y-%m-%d}")]


def _dates(facts: CertificateFacts, key: str, now: datetime) -> Sequence[Finding]:
    assert facts.not_after is not None  # noqa: S101 - asked by the caller
    assert facts.not_before is not None  # noqa: S101
    if now > facts.not_after:
        return [fault("certificate", key, f"has expired on {facts.not_after:%Y-%m-%d}", "Renew it.")]
    if now < facts.not_before:
        return [fault("certificate", key, f"is valid only from {facts.not_before:%Y-%m-%d}", "Look at the clock.")]
    if now > facts.not_after - SOON:
        return [
            warning(
                "certificate",
                key,
                f"expires on {facts.not_after:%Y-%m-%d}",
                "Renew it, and let that be done by itself.",
            )
        ]
    return []


def _covers(name: str, hostname: str) -> bool:
    """RFC 6125 6.4.3: a star stands for one label, the first."""
    name = name.lower()
    return name == hostname or (name.startswith("*.") and name[1:] == hostname[hostname.find(".") :])


def judge_listeners(running: bool, listeners: Sequence[ListenerFacts]) -> list[Finding]:
    """Whether the server runs, and everything it should listen on answers; or could be had."""
    exposed = [
        warning(
            "listener",
            each.address,
            f"can be reached from anywhere, without a password ({each.key})",
            "Name a loopback address, or one in a network that you trust.",
        )
        for each in listeners
        if each.exposed and each.key == "metrics.bind"
    ]
    if not running:
        taken = [
            fault(
                "listener",
                each.address,
                f"is not ours: {each.trouble}",
                f"Stop what listens there, or change {each.key}.",
            )
            for each in listeners
            if each.trouble
        ]
        return [warning("server", "appliance", "does not run", "Start it: appliance serve"), *taken, *exposed]
    found = [ok("server", "appliance", "runs")]
    for each in listeners:
        if each.answers:
            found.append(ok("listener", each.address, f"answers ({each.key})"))
        else:
            advice = "Restart the server: it was started with other settings, or is overloaded."
            found.append(fault("listener", each.address, f"does not answer ({each.key})", advice))
    return found + exposed


def judge_database(facts: DatabaseFacts) -> list[Finding]:
    """The file, its schema, who can read it, and whether its secrets can be opened."""
    subject = str(facts.path)
    if not facts.exists:
        return [warning("database", subject, "is not there yet", "appliance account create makes it.")]
    if facts.damage:
        return [
            fault("database", subject, facts.damage, "Restore the last good backup: appliance restore FILE --force")
        ]
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


def judge_held(facts: HeldFacts) -> list[Finding]:
    """Mail that does not go because somebody said so."""
    return [
        warning("queue", "all mail", f"is paused: {hold.reason}", "appliance resume")
        if hold.pool == EVERY
        else warning("queue", f"pool {hold.pool}", f"is held: {hold.reason}", f"appliance queue resume {hold.pool}")
        for hold in facts.holds
    ]


def today(microseconds: int) -> datetime:
    """A moment as certificates write it."""
    return datetime.fromtimestamp(microseconds / SECOND, UTC)
