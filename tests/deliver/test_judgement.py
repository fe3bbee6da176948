"""What each answer means for a recipient and for the pool, by replies as real servers give them."""

import pytest

from appliance.deliver.outcome import DELIVERED, TEMPORARY, Disposition, FaultSide, Judgement, judge, judge_no_route
from appliance.deliver.route import NoRoute
from appliance.deliver.smtp.protocol import Cause, ReplyReader, ResultKind, Stage, Verdict, answered, local, lost
from tests.cpu_time import cpu_seconds

RECIPIENT = Judgement(Disposition.BOUNCED, FaultSide.RECIPIENT)
SENDER = Judgement(Disposition.BOUNCED, FaultSide.SENDER)
OTHER = Judgement(Disposition.BOUNCED, FaultSide.OTHER)
DOMAIN = Judgement(Disposition.BOUNCED, FaultSide.DOMAIN)
MESSAGE = Judgement(Disposition.BOUNCED, FaultSide.MESSAGE)
THROTTLED = Judgement(Disposition.DEFERRED, throttle=True)
UNWANTED = Judgement(Disposition.DEFERRED, FaultSide.SENDER, throttle=True)


def said(text: str, stage: Stage = Stage.RCPT) -> Verdict:
    """The client's report of this reply, read as from the wire."""
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
        "554 5.1.1 no",
        "550 5.1.1 spam",  # the code is plain enough
        "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup",
        "550 No Such User Here",
        "550 no such user here: <x@example.com>",
        "550 User unknown",
        "550 5.0.0 <x@example.com>... User unknown",
        "550 unknown user <x@example.com>",
        "550 Unknown recipient",
        "550 Unknown local part x in <x@example.com>",
        "550 <x@example.com> User not known",
        "550 <x@example.com>: user does not exist",
        "550 Mailbox x@example.com doesn't exist",
        "550 5.5.0 mailbox not found",
        "550 Address unknown",
        "550 sorry, no mailbox here by that name (#5.1.1)",
        "550 This user doesn't have a example.com account (x@example.com)",
        "550 That account no longer exists",
        "550 x is not a valid mailbox",
        "550-Requested action not taken:\n550 recipient could not be found",
        "550 invalid recipient",
        "554 No such user",
        "556 5.1.10 null MX",
        "550 5.4.1 Recipient address rejected: Access denied. [AM0EUR02FT012.eop-EUR02.prod.protection.outlook.com]",
        "554 delivery error: dd This user doesn't have a yahoo.com account (x@yahoo.com) [0] - mta1.mail.yahoo.com",
        "552 1 Requested mail action aborted, mailbox not found",
    ],
)
def test_the_recipient_is_at_fault(text: str) -> None:
    """Codes and words that say there is no such mailbox bounce, and suppress the address."""
    assert judge(said(text)) == RECIPIENT
    assert judge(said(text)).suppresses


@pytest.mark.parametrize(
    "text",
    [
        "550 5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent. S3140",
        "550-5.7.26 Unauthenticated email from example.com is not accepted\n550 5.7.26 due to DMARC",
        "554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org",
        "550 5.7.13 user account disabled",
        "554 Transaction failed, rejected due to policy restrictions",
        "550 Your message looks like spam",
        "550 rejected: user unknown or blocked by policy",
        "550 Access denied - user unknown",
        "550 SPF check failed",
        "554 5.0.0 Your IP is on our blacklist",
        "550 192.0.2.1 has a poor reputation; user not found",
        "550 too many invalid recipients, no such user",
    ],
)
def test_the_sender_is_at_fault(text: str) -> None:
    """Policy and reputation bounce and count against the pool; they suppress no address, even where a user is named."""
    assert judge(said(text)) == SENDER
    assert not judge(said(text)).suppresses


@pytest.mark.parametrize(
    "text",
    [
        "552 5.2.2 The email account that you tried to reach is over quota",
        "550 5.2.2 mailbox full, user not found",
        "552 5.3.4 Message too big",
        "554 5.6.0 malformed message",
        "550 5.1.8 bad sender's system, user unknown",
        "550 5.1.7 bad sender, no such user",
        "554 5.4.6 too many hops",
        "550-5.2.1 The user you are trying to contact is receiving mail at a rate that\n550 5.2.1 prevents more",
        "550 Requested action not taken: mailbox unavailable",
        "550 5.7.1 User unknown",  # 5.7.x never suppresses, and this says nothing of our standing
        "550 5.4.1 Recipient address rejected",
        "550 relaying denied",
        "550-Verification failed for <a@b.c>\n550-No Such User Here\n550 Sender verify failed",
        "550 sender address does not exist",
        "550 MAIL FROM: user unknown",
        "550 Domain of your From address: no such user",
        "500 user unknown",  # no code of a recipient's
        "501 5.5.4 syntax",
        "550",
        "550 4.1.1 user of mixed minds",
    ],
)
def test_no_address_is_at_fault(text: str) -> None:
    """A permanent refusal that blames neither the address nor us bounces and has no further effect."""
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
    """A server may answer each recipient with 8 KB."""
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
        "451 4.7.650 The mail server has been temporarily rate limited due to IP reputation",
        "450 4.7.1 too much mail",
    ],
)
def test_the_pool_is_slowed(text: str) -> None:
    """421 and 4.7.x are temporary and ask for less."""
    assert judge(said(text)) == THROTTLED


@pytest.mark.parametrize(
    "text",
    [
        "450 4.2.0 Greylisted, try again in 300 seconds",
        "451 4.7.1 Greylisting in action, please come back later",
        "421 4.7.0 graylisted",
        "451 Temporary local problem",
        "452 4.2.2 mailbox full",
        "450 4.1.1 user unknown",
        "452 4.5.3 Too many recipients",
        "499",
        "450 5.1.1 of mixed minds",
    ],
)
def test_temporary(text: str) -> None:
    """Every other 4xx is simply tried again."""
    assert judge(said(text)) == TEMPORARY


@pytest.mark.parametrize("text", ["552 too many recipients", "550 5.5.3 too many"])
def test_too_many_recipients_at_once_are_tried_again(text: str) -> None:
    """A 5xx that only means that; to one recipient alone it is as permanent as any other."""
    assert judge(said(text), recipients=2) == TEMPORARY
    assert judge(said(text), recipients=1) == SENDER
    assert judge(said(text, Stage.END_OF_DATA), recipients=2) == SENDER


# ---- the stage


@pytest.mark.parametrize("stage", [Stage.GREETING, Stage.EHLO, Stage.STARTTLS, Stage.AUTH, Stage.RESET])
def test_a_refused_session_is_temporary(stage: Stage) -> None:
    """5xx before MAIL is neither about the recipient nor the message; a blocked sender is still noted for the pool."""
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
    """A refused MAIL FROM bounces the message and suppresses no address."""
    assert judge(said("550 5.1.1 user unknown", Stage.MAIL)) == OTHER
    assert judge(said("550 5.7.1 not you", Stage.MAIL)) == SENDER
    assert judge(said("552 5.3.4 too big", Stage.MAIL)) == OTHER


@pytest.mark.parametrize("stage", [Stage.DATA, Stage.END_OF_DATA])
def test_after_data_only_a_single_recipient_is_blamed(stage: Stage) -> None:
    """A refusal of the whole message names no recipient, unless there is only one."""
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
    """A lost connection, a timeout, a TLS fault or a broken reply is tried again."""
    for stage in Stage:
        assert judge(lost(stage, cause, "user unknown, spam")) == TEMPORARY


@pytest.mark.parametrize("cause", [Cause.NO_SMTPUTF8, Cause.TOO_LARGE])
def test_what_a_server_cannot_take_bounces(cause: Cause) -> None:
    """What the server's own EHLO rules out bounces without suppressing an address."""
    assert judge(local(cause, "user unknown")) == MESSAGE


def test_every_kind_is_judged() -> None:
    """Whatever the client reports, at whatever stage, gets a judgement, and only RCPT and DATA can suppress."""
    for kind in ResultKind:
        for stage in Stage:
            judgement = judge(Verdict(kind, stage, "550 user unknown"))
            assert judgement.result is not Disposition.DELIVERED or (kind, stage) == (
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
