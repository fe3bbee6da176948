"""The table of replies: each example is judged by its own rule, and delivery does what the rule says."""

import csv
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.outcome import FaultSide, judge
from appliance.deliver.smtp.protocol import ReplyReader, Stage, Verdict, answered
from appliance.feedback.reply_rules import JUDGED_CHARACTERS, RULES, Fault, Rule, judge_reply, parse_reply
from appliance.model.mail import BounceClass, RecipientStatus
from tests.cpu_time import cpu_seconds

EXAMPLES = [(rule, example) for rule in RULES for example in rule.examples]
UNWANTED = {BounceClass.AUTHENTICATION, BounceClass.REPUTATION, BounceClass.CONTENT, BounceClass.POLICY}
# Whose replies the table must know, by the words that name them in a rule's provider, source or example.
COVERED = [
    "google", "outlook", "microsoft365", "yahoo", "apple", "gmx", "web.de", "proton", "fastmail", "orange", "mail.ru",
    "qq", "netease", "zoho", "mimecast", "proofpoint", "barracuda", "cisco", "exchange", "postfix", "exim", "sendmail",
    "qmail", "opensmtpd", "rspamd", "postgrey",
]  # fmt: skip

# Replies with the class that a person gave them, apart from the table.
with (Path(__file__).parent / "corpus" / "replies.tsv").open(newline="") as table:
    REPLIES = [
        (row["source"], row["reply"], BounceClass(row["class"])) for row in csv.DictReader(table, delimiter="\t")
    ]


def rule_of(text: str) -> Rule:
    return judge_reply(*parse_reply(text))


def said(text: str, stage: Stage = Stage.RCPT) -> Verdict:
    reader = ReplyReader()
    reader.feed(text.encode() + b"\r\n")
    reply = reader.next_reply()
    assert reply is not None
    return answered(stage, reply)


# ---- the table


def test_the_table_is_large_and_covers_the_providers() -> None:
    examples = [example for _, example in EXAMPLES]
    assert len(examples) >= 150
    assert len(set(examples)) == len(examples)
    text = " ".join(f"{rule.provider} {rule.source} {' '.join(rule.examples)}" for rule in RULES).lower()
    assert [name for name in COVERED if name not in text] == []


def test_the_columns_of_the_table_agree() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.source, rule.name
        assert rule.examples, rule.name
        assert rule.suppress == (rule.bounce_class is BounceClass.INVALID_RECIPIENT), rule.name
        assert not rule.suppress or rule.fault is Fault.RECIPIENT, rule.name
        assert not (rule.suppress and rule.hold), rule.name
        if rule.codes[0] == 4 or rule.codes[0] // 100 == 4:
            assert rule.bounce_class in (BounceClass.TEMPORARY, BounceClass.MAILBOX_FULL), rule.name
        else:
            assert rule.hold != "if repeated", rule.name
            assert not rule.hold or (rule.fault is Fault.SENDER and rule.bounce_class in UNWANTED), rule.name


def test_no_rule_suppresses_a_policy_status() -> None:
    for rule in RULES:
        assert not (rule.suppress and any(status.startswith("5.7") for status in rule.status)), rule.name
    for words in ("user unknown", "no such user", "mailbox disabled", "", "recipient address rejected: access denied"):
        assert not rule_of(f"550 5.7.1 {words}").suppress


def test_an_example_is_judged_by_its_rule() -> None:
    """Class, fault, suppression and hold are those of the rule that quotes it; also within its provider's rules."""
    for rule, example in EXAMPLES:
        assert rule_of(example) == rule, example
        assert judge_reply(*parse_reply(example), provider=rule.provider) == rule, example


def test_delivery_does_what_the_rule_says() -> None:
    """Said to RCPT: what bounces and suppresses, what slows the pool, what counts towards a hold."""
    for rule, example in EXAMPLES:
        if not example[:3].isdigit():
            continue
        judgement = judge(said(example))
        if example.startswith("4"):
            assert judgement.result is RecipientStatus.DEFERRED, example
            assert judgement.throttle is (rule.hold is True), example
            assert judgement.if_repeated is (rule.hold == "if repeated"), example
        else:
            assert judgement.result is RecipientStatus.BOUNCED, example
            assert judgement.suppresses is rule.suppress, example
            assert (judgement.fault is FaultSide.SENDER) is (rule.hold is True), example


def test_the_class_of_a_reply() -> None:
    """Each has the class that its provider's documentation, or its words, give it."""
    for source, text, expected in REPLIES:
        assert rule_of(text).bounce_class is expected, (source, text)


# ---- the points of the issue


def test_a_greylist_that_does_not_name_itself_holds_nothing() -> None:
    rule = rule_of("451 4.7.1 Try again later")
    assert (rule.fault, rule.bounce_class, rule.hold) == (Fault.NONE, BounceClass.TEMPORARY, "if repeated")
    for stage in (Stage.RCPT, Stage.DATA, Stage.END_OF_DATA):
        judgement = judge(said("451 4.7.1 Try again later", stage))
        assert (judgement.throttle, judgement.if_repeated) == (False, True)
    assert judge(said("451 4.7.1 Try again later", Stage.GREETING)).throttle


def test_microsoft_365_says_that_a_recipient_is_unknown() -> None:
    text = "550 5.4.1 Recipient address rejected: Access denied. [AM0EUR02FT012.eop-EUR02.prod.protection.outlook.com]"
    assert judge(said(text)).suppresses
    assert judge(said(text)).fault is FaultSide.RECIPIENT
    assert judge(said("554 5.7.1 <a@b.example>: Recipient address rejected: Access denied")).fault is FaultSide.SENDER


@pytest.mark.parametrize(
    "text",
    [
        "554 delivery error: dd This user doesn't have a yahoo.com account (x@yahoo.com) [0] - mta1.mail.gq1.yahoo.com",
        "552 1 Requested mail action aborted, mailbox not found",
        "550 Unrouteable address",
        "550 Invalid recipient: <x@example.com>",
        "511 sorry, no mailbox here by that name (#5.1.1 - chkuser)",
        "554 No such user",
    ],
)
def test_an_unknown_user_is_suppressed_whatever_the_code(text: str) -> None:
    assert rule_of(text).bounce_class is BounceClass.INVALID_RECIPIENT
    assert judge(said(text)).suppresses


def test_an_address_decides_nothing() -> None:
    assert rule_of("550 No such user <spam@example.com>").suppress
    assert rule_of("550 <blocked.policy@dmarc.example>: no such user").suppress
    assert not rule_of("550 Message from user.unknown@example.com refused").suppress


@pytest.mark.parametrize(
    "text",
    [
        "550 5.1.1 <shop@example.org>: Sender address rejected: User unknown in virtual mailbox table",
        "550 5.1.2 <shop@example.org>: Sender address rejected: Domain not found",
        "501 5.1.3 Bad sender address syntax",
        "550 5.1.1 Message rejected due to the DMARC policy of example.org",
        "550 5.2.1 Client host [192.0.2.1] blocked using zen.spamhaus.org",
        "521 5.2.1 :  AOL will not accept delivery of this message.",
        "550 5.2.1 Mailbox temporarily disabled",
        "550 5.2.1 <ada@example.com> Mailbox full",
        "554 5.1.1 <ada@example.com> user is over quota",
        "550 cuda_nsu 5.7.1 <ada@example.com>: user unknown",
        "550 <ada@example.com>: Recipient address rejected: Access denied",
        "550 Temporary lookup failure: user unknown",
        "550 LDAP lookup failed; recipient not found",
        "550 IP address does not exist in DNS",
        "550 The Reply-To address does not exist",
        "550 Header From: domain no longer exists",
        "550 This certificate is no longer valid",
        "550 Your account is disabled",
        "550 Invalid user name or password",
        "550 HELO: unknown name",
        "550 5.1.1 Mail refused - 192.0.2.1 listed in black list",
        "550 5.1.1 Access denied; your IP is blocked",
        "550 This message was not delivered due to an invalid recipient in its header",
    ],
)
def test_a_reply_about_something_else_suppresses_no_address(text: str) -> None:
    """The sender, this machine, a full mailbox or trouble for now: the recipient's address may be a good one."""
    assert not rule_of(text).suppress
    assert not judge(said(text)).suppresses


def test_a_bounce_that_quotes_the_command_still_suppresses() -> None:
    assert rule_of("host mx.example.com[192.0.2.1] said: 550 User unknown (in reply to RCPT TO command)").suppress


# ---- robustness


def agrees(verdict: Verdict) -> None:
    """An address is suppressed only by a rule that says so; the sender's faults have the classes of such."""
    judgement, rule = judge(verdict), judge_reply(verdict.code, verdict.enhanced, verdict.text)
    assert judgement.suppresses is rule.suppress
    if judgement.fault is FaultSide.SENDER and judgement.result is RecipientStatus.BOUNCED:
        assert rule.bounce_class in UNWANTED
    if verdict.code is not None and verdict.code // 100 == 4:
        assert rule.bounce_class in (BounceClass.TEMPORARY, BounceClass.MAILBOX_FULL)


STATUSES = [
    "",
    *(f"{family}.{subject}.{detail} " for family, subject, detail in product("45", range(8), (0, 1, 2, 3, 7, 26))),
]
WORDS = ["", "user unknown", "blocked by policy", "mailbox full", "sender: no such user", "receiving mail too quickly"]


def test_class_and_delivery_agree_on_every_status() -> None:
    """For each status of RFC 3463 with telling words and without."""
    for code, status, words in product((450, 550, 552, 554), STATUSES, WORDS):
        agrees(said(f"{code} {status}{words}"))


@pytest.mark.parametrize(
    ("code", "status", "words", "expected", "suppress"),
    [
        (None, "5.1.1", "", BounceClass.INVALID_RECIPIENT, True),
        (None, None, "user unknown", BounceClass.INVALID_RECIPIENT, True),  # a bounce without a code
        (None, None, "", BounceClass.OTHER, False),
        (None, "4.4.7", "message expired", BounceClass.TEMPORARY, False),
        (None, "5.4.7", "delivery time expired", BounceClass.TEMPORARY, False),
        (550, "5.7.x", "", BounceClass.OTHER, False),
        (550, "5.7.", "user unknown", BounceClass.INVALID_RECIPIENT, True),
        (550, "5.7.99999", "", BounceClass.OTHER, False),
        (550, "4.1.1", "", BounceClass.OTHER, False),  # the code decides, and the status does not fit it
        (450, "5.1.1", "", BounceClass.TEMPORARY, False),
        (250, "2.0.0", "user unknown", BounceClass.OTHER, False),
    ],
)
def test_what_is_missing_or_malformed(
    code: int | None, status: str | None, words: str, expected: BounceClass, suppress: bool
) -> None:
    rule = judge_reply(code, status, words)
    assert (rule.bounce_class, rule.suppress) == (expected, suppress)


@given(st.none() | st.integers(-1, 10**6), st.none() | st.text(max_size=20), st.text())
def test_any_input_has_a_rule(code: int | None, status: str | None, words: str) -> None:
    judge_reply(code, status, words)
    judge_reply(*parse_reply(words), provider=status)


@pytest.mark.parametrize("words", ["user ", "mailbox quota ", "user mailbox ", "ip address ", "@", "a@b ", "a"])
def test_a_long_reply_is_soon_judged(words: str) -> None:
    text = words * (8_000 // len(words))
    judged = iter(range(10**6))  # each call another text, for the last replies are remembered
    assert cpu_seconds(lambda: judge_reply(550, None, f"{next(judged)} {text}")) < 0.005
    late = judge_reply(550, None, text[:JUDGED_CHARACTERS] + " user unknown")
    assert late == judge_reply(550, None, text[:JUDGED_CHARACTERS])


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("550 5.1.1 no", (550, "5.1.1", "5.1.1 no")),
        ("550-5.1.1 The account\n550 5.1.1 does not exist", (550, "5.1.1", "5.1.1 The account 5.1.1 does not exist")),
        ("smtp; 550 5.1.1 no", (550, "5.1.1", "5.1.1 no")),
        ("550 4.1.1 no", (550, None, "4.1.1 no")),
        ("550", (550, None, "")),
        ("452: mailbox full", (452, None, "mailbox full")),
        ("550:5.1.1 no", (550, "5.1.1", "5.1.1 no")),
        ("5.1.1 no", (None, "5.1.1", "5.1.1 no")),
        ("user unknown", (None, None, "user unknown")),
        ("", (None, None, "")),
    ],
)
def test_a_reply_is_parsed(text: str, parsed: tuple[int | None, str | None, str]) -> None:
    assert parse_reply(text) == parsed
