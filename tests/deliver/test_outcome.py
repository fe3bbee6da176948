"""What is recorded of an attempt: the outcome, the decision in words, the dialogue, within bounds."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.config.settings import DeliverySettings
from appliance.deliver.observation import NAMED_POOLS, observe
from appliance.deliver.outcome import (
    DELIVERED,
    RECORDED_RESPONSE,
    TEMPORARY,
    Contact,
    FaultSide,
    Judgement,
    Retries,
    judge,
    judge_no_route,
    outcome,
)
from appliance.deliver.route import NoRoute
from appliance.deliver.smtp.protocol import (
    Cause,
    ReplyReader,
    ResultKind,
    Stage,
    TranscriptLine,
    Verdict,
    answered,
    local,
    lost,
)
from appliance.environment import identifier_from
from appliance.model.mail import Attempt, BounceClass, DueRecipient, Outcome, RecipientStatus
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import ATTEMPT_SECONDS, BOUNCES, DELIVERY_ATTEMPTS, DELIVERY_SECONDS
from tests.cpu_time import cpu_seconds

NOW = 1_750_000_000_000_000
RECIPIENT = Judgement(RecipientStatus.BOUNCED, FaultSide.RECIPIENT)
SENDER = Judgement(RecipientStatus.BOUNCED, FaultSide.SENDER)
OTHER = Judgement(RecipientStatus.BOUNCED, FaultSide.OTHER)
DOMAIN = Judgement(RecipientStatus.BOUNCED, FaultSide.DOMAIN)
MESSAGE = Judgement(RecipientStatus.BOUNCED, FaultSide.MESSAGE)
THROTTLED = Judgement(RecipientStatus.DEFERRED, throttle=True)
UNWANTED = Judgement(RecipientStatus.DEFERRED, FaultSide.SENDER, throttle=True)
RETRIES = Retries((300.0, 600.0), lambda: 0.0)
CONTACT = Contact(NOW - 5, "pool", "mx.example.net", "192.0.2.1", "TLSv1.3, verified")


def recipient(attempts: int = 0, address: str = "Ada@Example.net") -> DueRecipient:
    return DueRecipient("rcp_1", "msg_1", "acc_1", address, "example.net", attempts, None, None, "a@b.c", "s", 1, 1)


def made(
    judgement: Judgement,
    attempts: int = 0,
    text: str = "550 5.1.1 unknown",
    code: int | None = 550,
    status: str | None = None,
) -> Outcome:
    return outcome(
        recipient(attempts),
        judgement,
        code=code,
        status=status,
        text=text,
        dialogue=(TranscriptLine(0, "S", "220 hello"),),
        contact=CONTACT,
        now=NOW,
        retries=RETRIES,
        signature=b"signature",
    )


def test_a_delivery() -> None:
    """Final, with all that is known of the contact; no signature need be kept."""
    done = made(DELIVERED, text="250 2.0.0 ok", code=250)
    (attempt,) = done.attempts
    assert done.status is RecipientStatus.DELIVERED
    assert (done.next_attempt_at, done.suppress, done.signature) == (None, None, None)
    assert (attempt.started_at, attempt.finished_at) == (NOW - 5, NOW)
    assert (attempt.smtp_code, attempt.smtp_response) == (250, "250 2.0.0 ok")
    assert (attempt.pool, attempt.mx_host, attempt.mx_address) == ("pool", "mx.example.net", "192.0.2.1")
    assert attempt.tls == "TLSv1.3, verified"
    assert json.loads(attempt.dialogue or "") == [[0, "S", "220 hello"]]
    assert attempt.decision == "delivered: the server took the message"


def test_a_deferral_says_when_and_keeps_the_signature() -> None:
    first, second = made(TEMPORARY), made(TEMPORARY, attempts=1)
    assert first.status is second.status is RecipientStatus.DEFERRED
    assert (first.next_attempt_at, second.next_attempt_at) == (NOW + 300_000_000, NOW + 600_000_000)
    assert first.signature == b"signature"
    assert first.attempts[0].decision == "deferred: attempt 2 of 3 at 2025-06-15T15:11:40.000Z"


def test_a_throttled_deferral_says_so() -> None:
    slowed = made(THROTTLED)
    assert (slowed.attempts[0].decision or "").endswith("Z; mail to this pool slows down")


def test_after_the_last_delay_it_has_failed() -> None:
    failed = made(TEMPORARY, attempts=2)
    assert failed.status is RecipientStatus.FAILED
    assert (failed.next_attempt_at, failed.suppress, failed.signature) == (None, None, None)
    assert failed.attempts[0].decision == "failed: 3 attempts are used up"


@pytest.mark.parametrize(
    ("fault", "suppressed", "words"),
    [
        (FaultSide.RECIPIENT, True, "bounced: the address does not exist, and is suppressed from now on"),
        (FaultSide.SENDER, False, "bounced: the server does not want mail from us; the address is not to blame"),
        (FaultSide.DOMAIN, False, "bounced: DNS leads to no mail server that can be asked, so none was"),
        (FaultSide.MESSAGE, False, "bounced: the server does not offer what this message needs"),
        (FaultSide.OTHER, False, "bounced: the server refuses this message for good"),
        (None, False, "bounced: the server refuses this message for good"),
    ],
)
def test_a_bounce(fault: FaultSide | None, suppressed: bool, words: str) -> None:
    """Only a recipient's fault suppresses, in the form in which addresses are compared."""
    bounced = made(Judgement(RecipientStatus.BOUNCED, fault))
    assert bounced.status is RecipientStatus.BOUNCED
    assert bounced.attempts[0].decision == words
    assert (bounced.suppress is not None) is suppressed
    if bounced.suppress is not None:
        assert bounced.suppress.address == "ada@example.net"
        assert bounced.suppress.reason == "bounced: 550 5.1.1 unknown"


def test_a_long_reply_is_cut() -> None:
    bounced = made(RECIPIENT, text="550 " + "x" * 100_000)
    assert len(bounced.attempts[0].smtp_response or "") == RECORDED_RESPONSE
    assert bounced.suppress is not None
    assert len(bounced.suppress.reason) < 250


def test_no_contact_leaves_the_record_empty() -> None:
    text, contact = "4.4.3 no answer", Contact(NOW)
    made_up = outcome(
        recipient(), TEMPORARY, code=None, status=None, text=text, contact=contact, now=NOW, retries=RETRIES
    )
    (attempt,) = made_up.attempts
    assert (attempt.pool, attempt.mx_host, attempt.mx_address, attempt.tls, attempt.dialogue) == (None,) * 5


@pytest.mark.parametrize(
    ("judgement", "code", "status", "text", "expected"),
    [
        (DELIVERED, 250, "2.0.0", "250 2.0.0 ok", None),
        (TEMPORARY, 451, "4.7.1", "451 4.7.1 greylisted", BounceClass.TEMPORARY),
        (TEMPORARY, 452, "4.2.2", "452 4.2.2 over quota", BounceClass.MAILBOX_FULL),
        (TEMPORARY, None, None, "the mailbox is full of mail that was blocked", BounceClass.TEMPORARY),
        (TEMPORARY, None, "4.4.3", "4.4.3 no answer", BounceClass.TEMPORARY),
        (TEMPORARY, 552, None, "552 too many recipients", BounceClass.TEMPORARY),
        (TEMPORARY, 250, None, "unexpected reply: 250 ok", BounceClass.TEMPORARY),
        (UNWANTED, 554, None, "554 blocked, see the blocklist", BounceClass.REPUTATION),
        (RECIPIENT, 550, "5.1.1", "550 5.1.1 no", BounceClass.INVALID_RECIPIENT),
        (OTHER, 550, "5.1.1", "550 5.1.1 no such user", BounceClass.OTHER),
        (OTHER, 552, "5.2.2", "552 5.2.2 full", BounceClass.MAILBOX_FULL),
        (SENDER, 550, "5.7.26", "550 5.7.26 no", BounceClass.AUTHENTICATION),
        (DOMAIN, None, "5.1.2", "5.1.2 no such domain", BounceClass.INVALID_RECIPIENT),
        (DOMAIN, None, "5.4.6", "5.4.6 mail would loop", BounceClass.OTHER),
        (MESSAGE, None, None, "local: no SMTPUTF8, and the sender", BounceClass.CONTENT),
    ],
)
def test_what_is_no_success_has_a_class(
    judgement: Judgement, code: int | None, status: str | None, text: str, expected: BounceClass | None
) -> None:
    assert made(judgement, code=code, status=status, text=text).bounce_class is expected
    assert made(judgement, attempts=2, code=code, status=status, text=text).bounce_class is expected


# ---- When a recipient is tried again: twelve attempts in two days, none at the same moment as its neighbo

DELAYS = DeliverySettings().retry_delays
HOUR = 3_600_000_000  # microseconds


def attempts(random: float) -> list[int]:
    times = [0]
    while (at := Retries(DELAYS, lambda: random).next_attempt(times[-1], len(times))) is not None:
        times.append(at)
    return times


def test_twelve_attempts_in_48_hours() -> None:
    times = attempts(0.0)
    assert len(times) == 12
    assert times[-1] == 48 * HOUR
    assert times[1] == 5 * 60_000_000


@pytest.mark.parametrize(("random", "hours"), [(0.5, 52.8), (1.0, 57.6)])
def test_jitter_is_a_fifth_at_most(random: float, hours: float) -> None:
    assert attempts(random)[-1] == pytest.approx(hours * HOUR)


def test_jitter_spreads() -> None:
    """A thousand deferrals of the same moment come back spread over the whole of the jitter."""
    random = Random(1).random
    times = sorted(Retries([100], random).next_attempt(0, 1) or 0 for _ in range(1000))
    assert times[0] >= 100_000_000  # a greylist that asks for the delay itself must not see us sooner
    assert times[-1] <= 120_000_000
    assert times[-1] - times[0] > 19_000_000


@pytest.mark.parametrize("made", [3, 4, 100])
def test_used_up(made: int) -> None:
    """After the last attempt there is no next one."""
    assert Retries([1, 1], lambda: 0.5).next_attempt(0, made) is None


def test_no_delay() -> None:
    """A delay of nothing means at once."""
    assert Retries([0], lambda: 1.0).next_attempt(7, 1) == 7


SECOND = 1_000_000
METRICS_NOW = 1_794_664_800 * SECOND


def metric(status: RecipientStatus, pool: str | None, code: int | None, decision: str | None = "so") -> Outcome:
    """A result of one attempt that took two seconds, for a message that was accepted ten seconds ago."""
    message = identifier_from("msg", METRICS_NOW - 10 * SECOND)
    due = DueRecipient("rcp_1", message, "acc_1", "a@b.test", "b.test", 0, None, None, "s@example.com", "s", 1, 1, "s")
    attempt = Attempt(METRICS_NOW - 2 * SECOND, METRICS_NOW, code, "text", pool, decision=decision)
    return Outcome(due, status, (attempt,), METRICS_NOW)


def counted(*outcomes: Outcome) -> dict[object, int]:
    before = dict(DELIVERY_ATTEMPTS.values)
    observe(outcomes)
    return {
        key: value - before.get(key, 0) for key, value in DELIVERY_ATTEMPTS.values.items() if value != before.get(key)
    }


def test_pools_without_a_name_are_counted_together() -> None:
    NAMED_POOLS.update(["partner"])
    results = [metric(RecipientStatus.DELIVERED, f"org{number}.test", 250) for number in range(1_000)]
    results += [metric(RecipientStatus.BOUNCED, "google", 550), metric(RecipientStatus.DEFERRED, "partner", 451)]
    assert counted(*results) == {
        ("other", "delivered", "2xx"): 1_000,
        ("google", "bounced", "5xx"): 1,
        ("partner", "deferred", "4xx"): 1,
    }
    NAMED_POOLS.discard("partner")


def test_what_reached_no_server_is_told_apart_from_the_sandbox() -> None:
    found = counted(
        metric(RecipientStatus.BOUNCED, None, None),
        metric(RecipientStatus.DELIVERED, None, 250, decision=None),
        metric(RecipientStatus.DEFERRED, "google", 999),
    )
    assert found == {
        ("none", "bounced", "none"): 1,
        ("sandbox", "delivered", "2xx"): 1,
        ("google", "deferred", "none"): 1,
    }


def test_bounces_are_counted_and_logged_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[object] = []
    monkeypatch.setattr(MESSAGE_LOG, "keep", True)
    monkeypatch.setattr(MESSAGE_LOG, "note", lambda event, **fields: noted.append((event, fields.get("bounce_class"))))
    before = dict(BOUNCES.values)
    full = replace(metric(RecipientStatus.BOUNCED, "google", 552), bounce_class=BounceClass.MAILBOX_FULL)
    late = replace(metric(RecipientStatus.FAILED, "google", 451), bounce_class=BounceClass.TEMPORARY)
    again = replace(metric(RecipientStatus.DEFERRED, "google", 451), bounce_class=BounceClass.TEMPORARY)
    observe([full, full, late, again, metric(RecipientStatus.DELIVERED, "google", 250)])
    found = {key: value - before.get(key, 0) for key, value in BOUNCES.values.items() if value != before.get(key)}
    assert found == {("bounced", "mailbox_full"): 2, ("failed", "temporary"): 1}
    classes = [("bounced", "mailbox_full")] * 2 + [("failed", "temporary"), ("deferred", "temporary")]
    assert noted == [*classes, ("delivered", None)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.DEFERRED]),
            st.sampled_from([250, 451, None]),
            st.sampled_from(["msg_1", "msg_2"]),
            st.sampled_from(["google", None]),
            st.sampled_from([None, BounceClass.MAILBOX_FULL]),
            st.integers(0, 2),
        ),
        max_size=12,
    )
)
def test_outcomes_are_counted_and_logged_together_as_one_by_one(kinds: list[tuple[Any, ...]]) -> None:
    outcomes = []
    for number, (status, code, message, pool, bounce_class, attempts) in enumerate(kinds):
        made = metric(status, pool, code)
        message_id = identifier_from(message, METRICS_NOW - 10 * SECOND)
        recipient = replace(made.recipient, id=f"rcp_{number:032x}", message_id=message_id)
        outcomes.append(
            replace(made, recipient=recipient, attempts=made.attempts * attempts, bounce_class=bounce_class)
        )
    assert observed([outcomes]) == observed([[outcome] for outcome in outcomes])


def observed(batches: list[list[Outcome]]) -> object:
    """What these outcomes add to the metrics and the log."""
    histograms, counters = (ATTEMPT_SECONDS, DELIVERY_SECONDS), (DELIVERY_ATTEMPTS, BOUNCES)
    before = [[*histogram.counts, histogram.total] for histogram in histograms]
    counts = [dict(counter.values) for counter in counters]
    noted: list[tuple[str, dict[str, object]]] = []

    def note(event: str, **fields: object) -> None:
        noted.append((event, fields))

    def note_recipients(event: str, recipients: list[str], **fields: object) -> None:
        noted.extend((event, fields | {"recipient_id": recipient}) for recipient in recipients)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MESSAGE_LOG, "keep", True)
        patched.setattr(MESSAGE_LOG, "note", note)
        patched.setattr(MESSAGE_LOG, "note_recipients", note_recipients)
        for outcomes in batches:
            observe(outcomes)
    after = [[*histogram.counts, histogram.total] for histogram in histograms]
    changes = [
        [round(new - old, 6) for new, old in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)
    ]
    added = [
        {key: value - old.get(key, 0) for key, value in counter.values.items() if value != old.get(key, 0)}
        for counter, old in zip(counters, counts, strict=True)
    ]
    return noted, changes, added


def test_times_are_in_seconds() -> None:
    attempts, deliveries = ATTEMPT_SECONDS.total, DELIVERY_SECONDS.total
    observe([metric(RecipientStatus.DELIVERED, "google", 250), metric(RecipientStatus.BOUNCED, "google", 550)])
    assert round(ATTEMPT_SECONDS.total - attempts, 6) == 4
    assert round(DELIVERY_SECONDS.total - deliveries, 6) == 10


def said(text: str, stage: Stage = Stage.RCPT) -> Verdict:
    reader = ReplyReader()
    reader.feed(text.replace("\n", "\r\n").encode() + b"\r\n")
    reply = reader.next_reply()
    assert reply is not None
    return answered(stage, reply)


@pytest.mark.parametrize(
    "text",
    [
        "550-5.1.1 The email account that you tried to reach does not exist. Please try\n550 5.1.1 double-checking",
        "550 5.1.1 <x@example.com>: Recipient address rejected: User unknown in virtual mailbox table",
        "553 5.1.2 We weren't able to find the recipient domain",
        "553-5.1.3 The recipient address <x> is not a valid RFC-5321 address\n553 5.1.3 x",
        "551 5.1.6 Mailbox has moved",
        "550 5.2.1 The email account that you tried to reach is disabled",
        "550-Requested action not taken:\n550 recipient could not be found",
    ],
)
def test_the_recipient_is_at_fault(text: str) -> None:
    assert judge(said(text)) == RECIPIENT
    assert judge(said(text)).suppresses


@pytest.mark.parametrize(
    "text",
    [
        "550 5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent. S3140",
        "550-5.7.26 Unauthenticated email from example.com is not accepted\n550 5.7.26 due to DMARC",
        "554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org",
    ],
)
def test_the_sender_is_at_fault(text: str) -> None:
    assert judge(said(text)) == SENDER
    assert not judge(said(text)).suppresses


@pytest.mark.parametrize(
    "text",
    [
        "552 5.2.2 The email account that you tried to reach is over quota",
        "550 5.2.2 mailbox full, user not found",
        "552 5.3.4 Message too big",
        "554 5.6.0 malformed message",
        "550-5.2.1 The user you are trying to contact is receiving mail at a rate that\n550 5.2.1 prevents more",
        "550-Verification failed for <a@b.c>\n550-No Such User Here\n550 Sender verify failed",
    ],
)
def test_no_address_is_at_fault(text: str) -> None:
    assert judge(said(text)) == OTHER


@pytest.mark.parametrize(
    "text",
    [
        "554 5.7.1 <bob@example.com>: Relay access denied",
        "550 5.7.64 TenantAttribution; Relay Access Denied [x.prod.protection.outlook.com]",
        "550 5.7.54 SMTP; Unable to relay recipient in non-accepted domain",
        "550 5.7.1 Unable to relay for bob@example.com",
        "550 relay not permitted",
        "550 5.7.1 We do not relay",
    ],
)
def test_a_server_that_does_not_know_the_domain_is_not_kept_from_other_mail(text: str) -> None:
    """A domain's MX may name any server: ten such refusals would stop all mail there, were they the sender's fault.

    Of the operator's own relay they are: all mail there waits for a login, or a permission.
    """
    assert judge(said(text)) == OTHER
    assert judge(said(text), relayed=True) in (SENDER, OTHER)
    assert judge(said("554 5.7.1 Relay access denied"), relayed=True) == SENDER


@pytest.mark.parametrize("words", ["user ", "mailbox quota ", "spa m ", "ip address ", "no ", "a"])
@pytest.mark.parametrize("code", ["550", "550 5.7.1", "452"])
def test_a_long_reply_is_soon_judged(code: str, words: str) -> None:
    verdict = said(f"{code} x")._replace(text=f"{code} " + words * (8_000 // len(words)))
    assert cpu_seconds(lambda: judge(verdict, 50)) < 0.005
    late = verdict._replace(text=verdict.text + " user unknown")
    assert judge(late, 50) == judge(verdict, 50)


@pytest.mark.parametrize(
    "text",
    [
        "421-4.7.28 Our system has detected an unusual rate of mail\n421 4.7.28 from your IP",
        "421 Service not available",
        "421 4.4.2 timeout",
        "421 RP-001 (BAY004-MC1F1) Unfortunately, some messages from 192.0.2.1 weren't sent",
    ],
)
def test_the_pool_is_slowed(text: str) -> None:
    assert judge(said(text)) == THROTTLED


@pytest.mark.parametrize(
    "text",
    [
        "450 4.2.0 Greylisted, try again in 300 seconds",
        "451 4.7.1 Greylisting in action, please come back later",
        "421 4.7.0 graylisted",
        "451 Temporary local problem",
    ],
)
def test_temporary(text: str) -> None:
    """Every other 4xx is simply tried again."""
    assert judge(said(text)) == TEMPORARY


@pytest.mark.parametrize("text", ["552 too many recipients", "550 5.5.3 too many"])
def test_too_many_recipients_at_once_are_tried_again(text: str) -> None:
    assert judge(said(text), recipients=2) == TEMPORARY
    assert judge(said(text), recipients=1) == SENDER
    assert judge(said(text, Stage.END_OF_DATA), recipients=2) == SENDER


# ---- the stage


@pytest.mark.parametrize("stage", [Stage.GREETING, Stage.EHLO, Stage.STARTTLS, Stage.AUTH, Stage.RESET])
def test_a_refused_session_is_temporary(stage: Stage) -> None:
    assert judge(said("554 no SMTP service here", stage)) == TEMPORARY
    assert judge(said("521 5.3.2 host does not accept mail", stage)) == TEMPORARY
    assert judge(said("550 5.1.1 user unknown", stage)) == TEMPORARY
    assert judge(said("554 5.7.1 your address is blocked", stage)) == UNWANTED
    assert judge(said("554-mx.example.com\n554 IP on blocklist", stage)) == UNWANTED


@pytest.mark.parametrize("text", ["530 Authentication required", "530 5.7.0 Must issue STARTTLS first", "535 5.7.8 no"])
def test_a_missing_login_is_temporary_before_a_recipient_is_named(text: str) -> None:
    """What asks for AUTH or TLS is the operator's to mend: the mail waits, the pool hears of it. Said to a recipient or
    to the message it bounces, as every other 5xx does, unless the operator's own relay says it.
    """
    assert judge(said(text, Stage.MAIL)) == UNWANTED
    for stage in (Stage.RCPT, Stage.DATA, Stage.END_OF_DATA):
        assert judge(said(text, stage)) == SENDER
        assert judge(said(text, stage), relayed=True) == UNWANTED


def test_mail_from_never_blames_a_recipient() -> None:
    assert judge(said("550 5.1.1 user unknown", Stage.MAIL)) == OTHER
    assert judge(said("550 5.7.1 not you", Stage.MAIL)) == SENDER
    assert judge(said("552 5.3.4 too big", Stage.MAIL)) == OTHER


@pytest.mark.parametrize("stage", [Stage.DATA, Stage.END_OF_DATA])
def test_after_data_only_a_single_recipient_is_blamed(stage: Stage) -> None:
    assert judge(said("550 5.1.1 user unknown", stage), recipients=1) == RECIPIENT
    assert judge(said("550 5.1.1 user unknown", stage), recipients=2) == OTHER
    assert judge(said("550 5.1.1 user unknown", Stage.RCPT), recipients=2) == RECIPIENT
    assert judge(said("554 5.7.1 spam", stage), recipients=2) == SENDER


def test_delivered() -> None:
    """2xx after the end of data, and only there, is a delivery."""
    assert judge(said("250 2.0.0 OK", Stage.END_OF_DATA)) == DELIVERED
    assert judge(said("299 whatever", Stage.END_OF_DATA)) == DELIVERED
    assert judge(said("250 OK", Stage.RCPT)) == TEMPORARY
    assert judge(said("354 go on", Stage.END_OF_DATA)) == TEMPORARY


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.NO_SMTPUTF8, Cause.TOO_LARGE)])
def test_no_answer_is_temporary(cause: Cause) -> None:
    for stage in Stage:
        assert judge(lost(stage, cause, "user unknown, spam")) == TEMPORARY


@pytest.mark.parametrize("cause", [Cause.NO_SMTPUTF8, Cause.TOO_LARGE])
def test_what_a_server_cannot_take_bounces(cause: Cause) -> None:
    assert judge(local(cause, "user unknown")) == MESSAGE


def test_every_kind_is_judged() -> None:
    for kind in ResultKind:
        for stage in Stage:
            judgement = judge(Verdict(kind, stage, "550 user unknown"))
            assert judgement.result is not RecipientStatus.DELIVERED or (kind, stage) == (
                ResultKind.ACCEPTED,
                Stage.END_OF_DATA,
            )
            assert not judgement.suppresses


@pytest.mark.parametrize(
    ("status", "judgement"),
    [
        ("5.1.2", DOMAIN),
        ("5.1.10", DOMAIN),
        ("5.4.4", DOMAIN),
        ("5.4.6", DOMAIN),
        ("4.4.3", TEMPORARY),
        ("4.4.4", TEMPORARY),
    ],
)
def test_no_route(status: str, judgement: Judgement) -> None:
    """Where there is nowhere to send to, a permanent reason bounces and suppresses no address."""
    assert judge_no_route(NoRoute(status, "")) == judgement
