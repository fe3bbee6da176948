"""Explains the state of a recipient in one sentence: the state, its reason, and the next attempt. No I/O."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from appliance.model.mail import (
    Attempt,
    FailureReason,
    OutgoingSession,
    RecipientStatus,
    Suppression,
    SuppressionOrigin,
    TriedRecipient,
)
from appliance.model.queue import PoolHold, PoolView
from appliance.model.ramp import Via
from appliance.model.warmup import WarmupStatus
from appliance.times import SECOND

AUTOMATIC_HOLD = "its servers refuse mail from this service"


def clock(at: int, now: int) -> str:
    moment, today = (datetime.fromtimestamp(time // SECOND, UTC) for time in (at, now))
    return moment.strftime("%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def span(microseconds: int) -> str:
    """Format a duration in its largest two units."""
    seconds = max(0, round(microseconds / SECOND))
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 60:
        return f"{seconds} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


# ---- a recipient
def standing(tried: TriedRecipient, pool: PoolView, now: int, attempts_allowed: int) -> str:
    if tried.next_attempt_at is not None:
        pool = replace(pool, hold=pool.hold_on(tried.node))
        if tried.route == Via.RELAY:  # the pool is that of its domain's servers
            pool = PoolView(pause=pool.pause, for_operator=pool.for_operator)
        later = tried.next_attempt_at > now and not (pool.has_no_source and not tried.attempts)
        return (_deferred if later else _waiting)(tried, tried.next_attempt_at, pool, now, attempts_allowed)
    if tried.recipient.status is RecipientStatus.SCHEDULED:
        return _scheduled(tried.scheduled_at or now, pool, now)
    return _FINAL[tried.recipient.status](tried, now)


def _scheduled(at: int, pool: PoolView, now: int) -> str:
    if at > now:
        return f"scheduled: queued at {_ahead(at, pool, now)}"
    return f"scheduled: due since {clock(at, now)}; it is queued next, unless the account is suspended"


def _delivered(tried: TriedRecipient, now: int) -> str:
    delivered_at = tried.recipient.delivered_at
    at = "" if delivered_at is None else f" at {clock(delivered_at, now)}"
    where = f" to {server(tried.attempts[-1])}, on attempt {len(tried.attempts)}" if tried.attempts else ""
    late = tried.recipient.late_bounce
    later = "" if late is None else f"; it bounced by mail at {clock(late.at, now)}: {late.response}"
    if (complaint := tried.recipient.complaint) is not None:
        later += f"; the recipient reported it as spam at {clock(complaint.at, now)}"
    return f"delivered{at}{where}{later}"


def _bounced(tried: TriedRecipient, now: int) -> str:
    recipient = tried.recipient
    if not tried.attempts:
        return f"bounced: never asked a server: {recipient.last_smtp_response}"
    last = tried.attempts[-1]
    at = clock(recipient.bounced_at or last.finished_at, now)
    decision = f" ({last.decision})" if last.decision else ""
    return f"bounced at {at} on attempt {len(tried.attempts)}: {_said(last)}{decision}"


def _failed(tried: TriedRecipient, now: int) -> str:
    response = tried.recipient.last_smtp_response or ""
    if not tried.attempts or tried.recipient.failure is FailureReason.CANCELLED:
        return response + (f" (after {_count(len(tried.attempts))})" if tried.attempts else "")
    last = tried.attempts[-1]
    return f"failed at {clock(last.finished_at, now)}: {_count(len(tried.attempts))} used up, the last: {_said(last)}"


_FINAL = {RecipientStatus.DELIVERED: _delivered, RecipientStatus.BOUNCED: _bounced, RecipientStatus.FAILED: _failed}
_AWAITED = {
    "connection": "a connection",
    "greeting": "its greeting",
    "handshake": "the TLS handshake",
    "reset": "its answer to RSET",
    "end_of_data": "its answer to the message",
}


def _deferred(tried: TriedRecipient, at: int, pool: PoolView, now: int, allowed: int) -> str:
    number = tried.recipient.attempt_count + 1
    words = f"deferred: try {number} of {allowed} at {_ahead(at, pool, now)}{_because(tried)}"
    held = _held(pool, now)
    return f"{words}; it will wait then, for {held}" if held else words


def _ahead(at: int, pool: PoolView, now: int) -> str:
    """A time, for the operator with the time left. Open pages count down themselves: their text stays the same."""
    return f"{clock(at, now)} (in {span(at - now)})" if pool.for_operator else clock(at, now)


def _waiting(tried: TriedRecipient, _: int, pool: PoolView, now: int, allowed: int) -> str:
    number = tried.recipient.attempt_count + 1
    before = f"; it is try {number} of {allowed}{_because(tried)}" if tried.attempts else ""
    if tried.simulated:
        return f"waiting: {_held(PoolView(pause=pool.pause), now) or 'the sandbox takes it next'}{before}"
    if tried.session is not None:
        why = _session(tried.session, now)
    elif tried.route == Via.RELAY:
        why = _held(pool, now) or "it goes by the relay"
    else:
        why = _why(pool, now)
    return f"waiting: {why}{before}"


def _session(session: OutgoingSession, now: int) -> str:
    at = "" if session.address == session.host else f" ({session.address})"
    awaited = _AWAITED.get(session.awaits, f"its answer to {session.awaits.upper()}")
    began, since = clock(session.started_at, now), clock(session.since, now)
    return f"a session with {session.host}{at} is under way since {began}, waiting for {awaited} since {since}"


def _held(pool: PoolView, now: int) -> str | None:
    if pool.pause is not None:
        hint = " (`appliance resume` lets it go)" if pool.for_operator else ""
        return f"all mail is paused: {pool.pause.reason}{hint}"
    if pool.hold is None:
        return _no_source(pool)
    by_node, reason = pool.hold.by_node, pool.hold.reason
    if not pool.for_operator:
        by_node, reason = "", public_reason(pool.hold)
    held = f"pool {pool.name} is held{by_node}: {reason}"
    if pool.hold.probe_at is None:
        return held
    return f"{held}; next probe {f'at {clock(pool.hold.probe_at, now)}' if pool.hold.probe_at > now else 'now'}"


def _no_source(pool: PoolView) -> str | None:
    """Return why no source takes the mail, or None if one does. Customers do not see the addresses."""
    if not pool.has_no_source:
        return None
    if not pool.for_operator:
        return "the addresses that this mail leaves from cannot be used now; it uses up no attempt"
    reasons = "; ".join(f"{source.name}: {source.reason}" for source in pool.sources)
    return f"all sources of its stream are out ({reasons}); it uses up no attempt"


def public_reason(hold: PoolHold) -> str:
    """Return the reason of a hold for customers: the operator's reason, or that the servers refuse mail."""
    return hold.reason if hold.probe_at is None else AUTOMATIC_HOLD


def _why(pool: PoolView, now: int) -> str:
    """Return the first reason that applies to a due recipient."""
    state, name = pool.state, f"pool {pool.name}"
    if held := _held(pool, now):
        return held
    if pool.name is None:
        return "its mail servers have not been looked up yet"
    if state is None:
        return f"{name} takes it as soon as a server runs"
    if state.slowed_until is not None and state.slowed_until > now:
        because = state.slowed_by if pool.for_operator else "its servers ask for less mail"
        return f"{name} slowed down until {clock(state.slowed_until, now)} because {because}"
    used = f"{state.in_use} of {state.allowed} in use"
    if (slowed := pool.slowed) is not None and slowed.waits_for_session:
        return f"{name} has room, {used}, but {slowed.reason}"
    if slowed is not None:
        paused = slowed.until > now
        how = f"slowed down until {clock(slowed.until, now)}" if paused else f"down to {slowed.slots} at once"
        return f"this account's mail to {name} is {how} because {slowed.reason}"
    if state.in_use >= state.allowed:
        return f"{name} {used}"
    if state.rate is not None:
        return f"{name} is limited to {state.rate} messages a minute, and has had as many"
    return warmup_wait(pool.warmups, now, for_operator=pool.for_operator) or f"{name} takes it next, {used}"


def warmup_wait(warmups: Iterable[WarmupStatus], now: int, *, for_operator: bool = True) -> str | None:
    """Return the warm-up limit that ends first, if one delays mail; without address and usage for customers."""
    limits = [(status.next_at, status) for status in warmups if status.next_at is not None and status.next_at > now]
    if not limits:
        return None
    at, first = min(limits, key=lambda limit: limit[0])
    pace, until = f"{first.per_hour} an hour on day {first.day}", f"next at {clock(at, now)}"
    if not for_operator:
        return f"warm-up of pool {first.pool} from a new sending address: {pace}; {until}"
    return f"warm-up of pool {first.pool} from {first.source}: {pace}, {first.used} used; {until}"


def _because(tried: TriedRecipient) -> str:
    return f" because {_said(tried.attempts[-1])}" if tried.attempts else ""


def _said(attempt: Attempt) -> str:
    text = attempt.smtp_response or "nothing is known"
    return f"{attempt.mx_host} said {text}" if attempt.mx_host and attempt.smtp_code is not None else text


def _count(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


# ---- a suppressed address

_WHY_LISTED = {
    SuppressionOrigin.BOUNCE: "its server said for good that it takes no mail for it: correct the address",
    SuppressionOrigin.LATE_BOUNCE: "it bounced by mail after its server had taken the message: correct the address",
    SuppressionOrigin.COMPLAINT: "the recipient reported a message as spam: send to it only if they ask for it",
    SuppressionOrigin.UNSUBSCRIBE: "the recipient unsubscribed, and gets only other messages",
    SuppressionOrigin.MANUAL: "it was listed by hand",
    SuppressionOrigin.IMPORT: "it came with an imported list",
}


def suppressed(entry: Suppression, account: str, now: int) -> str:
    what = f" ({entry.reason})" if entry.mail_list else f": {entry.reason}"
    origin = entry.origin.value.replace("_", " ")
    return f"suppressed for {account} since {clock(entry.created_at, now)} by {origin}{what}"


def suppression_advice(entry: Suppression, account: str) -> str:
    if entry.mail_list:
        return _WHY_LISTED[entry.origin]
    again = f"`appliance suppression remove --account {account} {entry.address}` lets mail go to it again"
    return f"{_WHY_LISTED[entry.origin]}; {again}"


# ---- an attempt
def server(attempt: Attempt) -> str:
    if attempt.mx_host is None:
        return "the sandbox" if attempt.decision is None else "no server"  # only simulated ones decide nothing
    at = f" ({attempt.mx_address})" if attempt.mx_address and attempt.mx_address != attempt.mx_host else ""
    return f"{attempt.mx_host}{at} {encryption(attempt.tls)}"


def encryption(tls: str | None) -> str:
    return "without TLS" if tls is None else f"over {tls}"


_ROUTES: dict[str, str] = {Via.DIRECT: "direct", Via.RELAY: "by the relay"}


def attempt_line(number: int, attempt: Attempt, now: int) -> str:
    took = (attempt.finished_at - attempt.started_at) // 1000
    through = f", pool {attempt.pool}" if attempt.pool else ""
    through += f", from {attempt.source}" if attempt.source else ""
    through += f", {_ROUTES[attempt.route]}" if attempt.route else ""
    decided = f" -> {attempt.decision}" if attempt.decision else ""
    head = f"attempt {number} at {clock(attempt.started_at, now)}, {took} ms{through}: {server(attempt)}"
    return f"{head}: {attempt.smtp_response or 'no answer'}{decided}"


class DialogueLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of an SMTP session: by the client (`C`), the server (`S`), or a remark (`*`)."""

    milliseconds: int
    speaker: str
    text: str


def dialogue(attempt: Attempt) -> Iterable[DialogueLine]:
    return msgspec.json.decode(attempt.dialogue or "[]", type=list[DialogueLine])
