"""Judges a server's verdict on a recipient: delivered, bounced (and who is at fault), or deferred. No I/O.

The first rule that matches decides. Anything that no rule names is temporary.

1. 2xx after the end of data: delivered.
2. No usable reply (a lost connection, TLS, DNS, anything unknown): temporary.
3. Known without a reply (no such domain, no SMTPUTF8, too large): bounced, and the address is not at fault.
4. 4xx: temporary. The table of replies decides whether it slows the pool.
5. 5xx about the session (greeting, EHLO, TLS, AUTH, a reply to MAIL whose code asks for AUTH, and such a code from the
   operator's relay at any stage): temporary. It is about neither this recipient nor this message.
6. 5xx to a recipient because the transaction has too many, if it has others: temporary.
7. 5xx to the message or the recipient: bounced. The table of replies decides who is at fault.

The table of replies is `feedback/reply_rules.toml`.
"""

import re
from enum import StrEnum
from typing import NamedTuple

from appliance.deliver.route import NoRoute
from appliance.deliver.smtp.protocol import ResultKind, Stage, Verdict
from appliance.feedback.reply_rules import Fault, Rule, judge_reply
from appliance.model.mail import BounceClass


class Disposition(StrEnum):
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    DEFERRED = "deferred"


class FaultSide(StrEnum):
    RECIPIENT = "recipient"  # no such mailbox: the address is suppressed
    SENDER = "sender"  # the server refuses this sender: never suppresses, and counts towards a hold of the pool
    DOMAIN = "domain"  # DNS names no server that delivery could try
    MESSAGE = "message"  # the server lacks an extension that this message needs
    OTHER = "other"  # none of these, or unknown


class Judgement(NamedTuple):
    """The effect of an attempt on one recipient and on the pool."""

    result: Disposition
    fault: FaultSide | None = None  # None: no fault, or a temporary one
    throttle: bool = False  # the server asks for less mail: slow the pool
    if_repeated: bool = False  # the same, once this verdict meets recipients that the pool accepted before

    @property
    def suppresses(self) -> bool:
        return self.result is Disposition.BOUNCED and self.fault is FaultSide.RECIPIENT


_TOO_MANY_RECIPIENTS = re.compile(r"too many recipients", re.IGNORECASE)
_WHOLE_MESSAGE = frozenset((Stage.DATA, Stage.END_OF_DATA))
_ABOUT_THE_SESSION = frozenset((530, 534, 535, 538))  # asks for AUTH or TLS, RFC 4954 6, RFC 3207 4

DELIVERED = Judgement(Disposition.DELIVERED)
TEMPORARY = Judgement(Disposition.DEFERRED)


def judge(verdict: Verdict, recipients: int = 1, *, relayed: bool = False) -> Judgement:
    """Judge a verdict. `recipients`: number in the transaction; `relayed`: the operator's relay gave it."""
    match verdict.kind:
        case ResultKind.ACCEPTED if verdict.stage is Stage.END_OF_DATA:
            return DELIVERED
        case ResultKind.LOCAL:
            return Judgement(Disposition.BOUNCED, FaultSide.MESSAGE)
        case ResultKind.DEFERRED:
            return _deferred(verdict, judge_reply(verdict.code, verdict.enhanced, verdict.text))
        case ResultKind.REJECTED if verdict.reply is not None:
            return _rejected(verdict, judge_reply(verdict.code, verdict.enhanced, verdict.text), recipients, relayed)
        case _:
            return TEMPORARY


def judge_no_route(no_route: NoRoute) -> Judgement:
    """Judge a missing route. It suppresses no address: a wrong answer of our resolver could suppress them all."""
    return Judgement(Disposition.BOUNCED, FaultSide.DOMAIN) if no_route.permanent else TEMPORARY


def _deferred(verdict: Verdict, rule: Rule) -> Judgement:
    """Judge a 4xx. Before RCPT it is about this machine or the sender, so a single one is enough to slow the pool."""
    if rule.hold != "if repeated":
        return Judgement(Disposition.DEFERRED, throttle=rule.holds)
    names_recipient = verdict.stage is Stage.RCPT or verdict.stage in _WHOLE_MESSAGE
    asks_for_less = verdict.code == 421 or (verdict.enhanced or "").startswith("4.7.")
    return Judgement(Disposition.DEFERRED, throttle=asks_for_less and not names_recipient, if_repeated=names_recipient)


def _rejected(verdict: Verdict, rule: Rule, recipients: int, relayed: bool) -> Judgement:
    fault = _fault(verdict, rule, recipients, relayed)
    asks_for_login = verdict.code in _ABOUT_THE_SESSION and (verdict.stage is Stage.MAIL or relayed)
    if verdict.is_before_mail or asks_for_login:
        # Still the sender's fault if it says so: a greeting that says our address is blocked counts for the pool.
        is_sender_fault = fault is FaultSide.SENDER
        return Judgement(Disposition.DEFERRED, FaultSide.SENDER if is_sender_fault else None, throttle=is_sender_fault)
    # RFC 5321 4.5.3.1.10: some servers refuse permanently the recipients beyond their limit.
    too_many = verdict.enhanced == "5.5.3" or (verdict.code == 552 and _TOO_MANY_RECIPIENTS.search(verdict.text))
    if verdict.stage is Stage.RCPT and recipients > 1 and too_many:
        return TEMPORARY
    return Judgement(Disposition.BOUNCED, fault)


def _fault(verdict: Verdict, rule: Rule, recipients: int, relayed: bool) -> FaultSide:
    if rule.suppress:
        # A reply to MAIL is about no recipient, and one to DATA about this recipient only if it is the only one.
        is_about_recipient = verdict.stage is Stage.RCPT or (verdict.stage in _WHOLE_MESSAGE and recipients == 1)
        return FaultSide.RECIPIENT if is_about_recipient else FaultSide.OTHER
    if rule.bounce_class is BounceClass.POLICY and rule.fault is Fault.SERVER:
        # Relaying refused: the domain's MX names a server that is not its own, which must not hold other mail. From
        # the operator's relay, or before RCPT, it is about this sender.
        return FaultSide.OTHER if verdict.stage is Stage.RCPT and not relayed else FaultSide.SENDER
    return FaultSide.SENDER if rule.fault is Fault.SENDER and rule.holds else FaultSide.OTHER
