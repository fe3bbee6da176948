"""The words in which an operator is told where a recipient stands, by table."""

import pytest
from msgspec.structs import replace

from appliance.model.mail import (
    Attempt,
    Billing,
    FailureReason,
    OutgoingSession,
    Recipient,
    RecipientStatus,
    TriedRecipient,
)
from appliance.model.queue import PoolHold, PoolState, PoolView, SlowedAccount
from appliance.model.warmup import WarmupStatus
from appliance.report.explain import DialogueLine, attempt_line, clock, dialogue, span, standing
from appliance.times import SECOND

NOW = 1_794_664_800 * SECOND  # 2026-11-14 14:00:00 UTC
TLS = "TLSv1.3, TLS_AES_256_GCM_SHA384, verified by DANE"
GOOGLE = PoolState("google", 5, 5, None, None, NOW)
IDLE = PoolState("google", 1, 5, None, None, NOW)
HOLD = PoolHold("google", "10 refusals in a row of mail from this server, the last with 550 5.7.1", NOW, NOW)


def warming(source: str, wait: int | None) -> WarmupStatus:
    return WarmupStatus("google", source, 2, 30, 28, 28, None if wait is None else NOW + wait * SECOND)


def attempt(code: int | None, text: str, host: str | None = "mx.example.net", **fields: object) -> Attempt:
    made = {"mx_host": host, "mx_address": "192.0.2.1" if host else None, "tls": TLS if host else None}
    return Attempt(NOW - 61 * SECOND, NOW - 60 * SECOND, code, text, **{**made, "decision": "", **fields})  # type: ignore[arg-type]


def tried(
    status: RecipientStatus,
    *attempts: Attempt,
    due: int | None = None,
    response: str | None = None,
    simulated: bool = False,
    failure: FailureReason | None = None,
) -> TriedRecipient:
    final = {RecipientStatus.DELIVERED: (NOW - 60 * SECOND, None), RecipientStatus.BOUNCED: (None, NOW - 60 * SECOND)}
    delivered_at, bounced_at = final.get(status, (None, None))
    last = attempts[-1] if attempts else None
    recipient = Recipient(
        "rcp_1",
        "ada@example.net",
        status,
        Billing.RESERVED,
        len(attempts),
        last.smtp_code if last else None,
        response if response is not None or last is None else last.smtp_response,
        delivered_at,
        bounced_at,
        failure=failure,
    )
    next_attempt_at = None if due is None else NOW + due * SECOND
    return TriedRecipient(recipient, "example.net", simulated, next_attempt_at, attempts)


OK = attempt(250, "250 2.0.0 ok")
GREY = attempt(451, "451 4.7.1 greylisted")
UNKNOWN = attempt(550, "550 5.1.1 no such user", decision="bounced: the address does not exist, and is suppressed")
NO_ROUTE = attempt(None, "5.1.2 example.net does not exist", None, decision="bounced: for good")
QUEUED, DEFERRED = RecipientStatus.QUEUED, RecipientStatus.DEFERRED
DELIVERED, BOUNCED, FAILED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED

# The sentence about a recipient that is due, by the state of its pool.
WAITING = {
    "waiting: pool google 5 of 5 in use": PoolView("google", None, GOOGLE),
    "waiting: pool google slowed down until 14:00:30 because 421 4.7.0 too fast": PoolView(
        "google", None, PoolState("google", 0, 5, NOW + 30 * SECOND, "421 4.7.0 too fast", NOW)
    ),
    "waiting: pool google takes it next, 0 of 5 in use": PoolView(
        "google", None, PoolState("google", 0, 5, NOW - 30 * SECOND, "421 4.7.0 too fast", NOW)
    ),
    "waiting: pool google has room, 1 of 5 in use, but this account has all 4 sessions": PoolView(
        "google", None, IDLE, slowed=SlowedAccount("acc_1", 0, "this account has all 4 sessions", 0)
    ),
    "waiting: this account's mail to pool google is slowed down until 14:00:30 because 421 4.7.0 too fast": PoolView(
        "google", None, IDLE, slowed=SlowedAccount("acc_1", NOW + 30 * SECOND, "421 4.7.0 too fast", 2)
    ),
    "waiting: this account's mail to pool google is down to 2 at once because 421 4.7.0 too fast": PoolView(
        "google", None, IDLE, slowed=SlowedAccount("acc_1", NOW, "421 4.7.0 too fast", 2)
    ),
    "waiting: pool google is limited to 30 messages a minute, and has had as many": PoolView(
        "google", None, PoolState("google", 1, 5, None, None, NOW, rate=30)
    ),
    "waiting: its mail servers have not been looked up yet": PoolView(),
    "waiting: pool google takes it as soon as a server runs": PoolView("google"),
    "waiting: warm-up of pool google from 2001:db8::1: 28 an hour on day 2, 28 used; next at 14:02:00": PoolView(
        "google", None, IDLE, warmups=(warming("192.0.2.1", 150), warming("2001:db8::1", 120))
    ),
    "waiting: pool google takes it next, 1 of 5 in use": PoolView(
        "google", None, IDLE, warmups=(warming("192.0.2.1", None),)
    ),
    f"waiting: pool google is held: {HOLD.reason}; next probe now": PoolView(
        "google", HOLD, IDLE, warmups=(warming("192.0.2.1", 150),)
    ),
}
CASES = {words: (tried(QUEUED, due=0), pool) for words, pool in WAITING.items()} | {
    "waiting: it goes by the relay": (
        replace(tried(QUEUED, due=0), route="relay"),
        PoolView("google", HOLD, IDLE),
    ),
    f"delivered at 13:59:00 to mx.example.net (192.0.2.1) over {TLS}, on attempt 2": (
        tried(DELIVERED, GREY, OK),
        PoolView(),
    ),
    "delivered at 13:59:00 to mx.example.net (192.0.2.1) without TLS, on attempt 1": (
        tried(DELIVERED, attempt(250, "250 ok", tls=None)),
        PoolView(),
    ),
    "delivered at 13:59:00 to the sandbox, on attempt 1": (
        tried(DELIVERED, attempt(250, "250 ok", None, decision=None), simulated=True),
        PoolView(),
    ),
    "waiting: pool google takes it next, 2 of 5 in use": (
        tried(QUEUED, due=-5),
        PoolView("google", None, PoolState("google", 2, 5, None, None, NOW)),
    ),
    "waiting: the sandbox takes it next": (tried(QUEUED, due=0, simulated=True), PoolView()),
    "waiting: pool google 5 of 5 in use; it is try 2 of 12 because mx.example.net said 451 4.7.1 greylisted": (
        tried(DEFERRED, GREY, due=0),
        PoolView("google", None, GOOGLE),
    ),
    "deferred: try 3 of 12 at 14:04:00 (in 4 min) because mx.example.net said 451 4.7.1 greylisted": (
        tried(DEFERRED, GREY, GREY, due=240),
        PoolView("google", None, GOOGLE),
    ),
    "deferred: try 2 of 12 at 2026-11-15 02:00:00 (in 12 h 0 min) because no connection: refused": (
        tried(DEFERRED, attempt(None, "no connection: refused"), due=43200),
        PoolView("google"),
    ),
    (
        "deferred: try 2 of 12 at 14:00:30 (in 30 s) because mx.example.net said 451 4.7.1 greylisted;"
        " it will wait then, for pool google is held: moving"
    ): (tried(DEFERRED, GREY, due=30), PoolView("google", PoolHold("google", "moving", NOW))),
    (
        "bounced at 13:59:00 on attempt 1: mx.example.net said 550 5.1.1 no such user"
        " (bounced: the address does not exist, and is suppressed)"
    ): (tried(BOUNCED, UNKNOWN), PoolView()),
    "bounced at 13:59:00 on attempt 1: 5.1.2 example.net does not exist (bounced: for good)": (
        tried(BOUNCED, NO_ROUTE),
        PoolView(),
    ),
    "bounced: never asked a server: suppressed: this address is on the account's suppression list": (
        tried(
            BOUNCED,
            response="suppressed: this address is on the account's suppression list",
            failure=FailureReason.SUPPRESSED,
        ),
        PoolView(),
    ),
    "failed at 13:59:00: 12 attempts used up, the last: mx.example.net said 451 4.7.1 greylisted": (
        tried(FAILED, *[GREY] * 12),
        PoolView(),
    ),
    "cancelled: given up by the operator (after 1 attempt)": (
        tried(FAILED, GREY, response="cancelled: given up by the operator", failure=FailureReason.CANCELLED),
        PoolView(),
    ),
    "cancelled: given up by the operator": (
        tried(FAILED, response="cancelled: given up by the operator", failure=FailureReason.CANCELLED),
        PoolView(),
    ),
}


SCHEDULED = replace(tried(RecipientStatus.SCHEDULED), scheduled_at=NOW + 240 * SECOND)


@pytest.mark.parametrize("recipient", [tried(DEFERRED, GREY, due=240), SCHEDULED])
def test_a_customers_text_does_not_change_each_minute(recipient: TriedRecipient) -> None:
    """Open pages would get it again and again; they count down themselves."""
    pool = PoolView("google", None, GOOGLE, for_operator=False)
    assert standing(recipient, pool, NOW, 12) == standing(recipient, pool, NOW + 61 * SECOND, 12)


@pytest.mark.parametrize("words", CASES)
def test_where_a_recipient_stands(words: str) -> None:
    assert standing(*CASES[words], NOW, 12) == words


@pytest.mark.parametrize(
    ("awaits", "words"),
    [
        ("connection", "a connection"),
        ("greeting", "its greeting"),
        ("handshake", "the TLS handshake"),
        ("rcpt", "its answer to RCPT"),
        ("end_of_data", "its answer to the message"),
    ],
)
def test_a_session_under_way_is_told(awaits: str, words: str) -> None:
    session = OutgoingSession("rcp_1", "mx.x.example", "192.0.2.1", NOW - 60 * SECOND, awaits, NOW - 50 * SECOND)
    assert standing(
        replace(tried(DEFERRED, GREY, due=0), session=session), PoolView("google", None, GOOGLE), NOW, 12
    ) == (
        "waiting: a session with mx.x.example (192.0.2.1) is under way since 13:59:00,"
        f" waiting for {words} since 13:59:10; it is try 2 of 12 because mx.example.net said 451 4.7.1 greylisted"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (3660, "1 h 1 min"), (90000, "1 d 1 h"), (-5, "0 s")],
)
def test_a_span_of_time(seconds: int, words: str) -> None:
    assert span(seconds * SECOND) == words


def test_a_time_has_its_date_unless_it_is_today() -> None:
    assert clock(NOW + 5 * SECOND, NOW) == "14:00:05"
    assert clock(NOW - 86400 * SECOND, NOW) == "2026-11-13 14:00:00"


def test_an_attempt_on_one_line() -> None:
    line = attempt_line(2, attempt(451, "451 4.7.1 greylisted", pool="google", decision="deferred: later"), NOW)
    assert line == (
        f"attempt 2 at 13:58:59, 1000 ms, pool google: mx.example.net (192.0.2.1) over {TLS}:"
        " 451 4.7.1 greylisted -> deferred: later"
    )
    assert attempt_line(1, NO_ROUTE, NOW) == (
        "attempt 1 at 13:58:59, 1000 ms: no server: 5.1.2 example.net does not exist -> bounced: for good"
    )


def test_a_dialogue_is_read_back() -> None:
    kept = attempt(250, "250 ok", dialogue='[[0,"S","220 hello"],[12,"C","EHLO mail.example.com"]]')
    assert dialogue(kept) == [DialogueLine(0, "S", "220 hello"), DialogueLine(12, "C", "EHLO mail.example.com")]
    assert dialogue(NO_ROUTE) == []


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (
            PoolView("google", HOLD, GOOGLE),
            "waiting: pool google is held: its servers refuse mail from this service; next probe now",
        ),
        (PoolView("google", PoolHold("google", "we move", NOW), GOOGLE), "waiting: pool google is held: we move"),
        (
            PoolView("google", None, PoolState("google", 1, 5, NOW + 30 * SECOND, "421 4.7.0 bob@x.example", NOW)),
            "waiting: pool google slowed down until 14:00:30 because its servers ask for less mail",
        ),
        (PoolView("google", pause=PoolHold("*", "we move", NOW)), "waiting: all mail is paused: we move"),
        (
            PoolView("google", None, IDLE, warmups=(warming("192.0.2.1", 150),)),
            "waiting: warm-up of pool google from a new sending address: 28 an hour on day 2; next at 14:02:30",
        ),
    ],
)
def test_customers_are_told_nothing_of_others(pool: PoolView, words: str) -> None:
    assert standing(tried(QUEUED, due=-1), replace(pool, for_operator=False), NOW, 12) == words


def test_a_hold_by_one_node_is_told_of_its_own_mail() -> None:
    here = replace(tried(QUEUED, due=-1), node="mail1")
    pool = PoolView("google", None, IDLE, node_holds=(replace(HOLD, node="mail1"), replace(HOLD, node="mail3")))
    words = "10 refusals in a row"
    assert standing(here, pool, NOW, 12).startswith(f"waiting: pool google is held by node mail1: {words}")
    assert standing(replace(here, node="mail2"), pool, NOW, 12).startswith("waiting: pool google takes it next")
    assert standing(here, replace(pool, for_operator=False), NOW, 12).startswith(
        "waiting: pool google is held: its servers refuse mail"
    )
    moving = replace(pool, hold=PoolHold("google", "moving", NOW))
    assert standing(here, moving, NOW, 12) == "waiting: pool google is held: moving"
    later = standing(replace(tried(DEFERRED, GREY, due=60), node="mail1"), pool, NOW, 12)
    assert "it will wait then, for pool google is held by node mail1" in later
