"""Judges what a server said of a transaction, and tells the limiter of that server.

Each kind of verdict counts once in a transaction: ten refused recipients are one refusal.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import NamedTuple

import trio
from msgspec import Struct

from appliance.deliver.outcome import DELIVERED, Contact, FaultSide, Judgement, judge
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import PoolLimiters, PoolSlot
from appliance.deliver.preparing import Routed
from appliance.deliver.smtp.protocol import Dialogue, ResultKind, Stage, Verdict
from appliance.deliver.sources import Sources
from appliance.environment import Environment
from appliance.model.mail import RecipientStatus


class Reached(NamedTuple):
    """The result of a transaction at one server."""

    verdicts: tuple[Verdict, ...]
    dialogues: tuple[Dialogue, ...]  # in the order of the recipients, as the verdicts are
    contact: Contact
    final: bool  # try no other server
    limiter: PoolLimiter  # of that server
    relayed: bool = False  # the server is the operator's relay


class Verdicts(Struct, frozen=True):
    env: Environment
    limiters: PoolLimiters
    sources: Sources

    async def judge(
        self, reached: Reached, slot: PoolSlot, routed: Routed, addresses: tuple[str, ...]
    ) -> list[Judgement]:
        verdicts, limiter, now = reached.verdicts, reached.limiter, self.env.now()
        judgements = []
        for verdict in verdicts:
            judgements.append(judge(verdict, len(verdicts), relayed=reached.relayed))
            if verdict.kind is not ResultKind.ACCEPTED:  # judging its text takes up to 0.3 ms
                await trio.lowlevel.cancel_shielded_checkpoint()
        if all(judgement is DELIVERED for judgement in judgements):  # the usual case
            slot.note_reply(limiter, delivered=True)
            limiter.delivered(slot.account)
            for address in addresses:
                self.limiters.note_accepted(limiter, slot.account, address)
            return judgements
        if all(verdict.code is None for verdict in verdicts):  # no server replied
            return judgements
        slot.note_reply(
            limiter, delivered=any(judgement.result is RecipientStatus.DELIVERED for judgement in judgements)
        )
        slow_downs, refusals, unexplained = [], [], []
        for address, judgement, verdict in zip(addresses, judgements, verdicts, strict=True):
            if judgement is DELIVERED:
                self.limiters.note_accepted(limiter, slot.account, address)
            elif judgement.if_repeated:
                unexplained.append((address, verdict))
            if judgement.throttle:
                slow_downs.append(verdict)
            if judgement.fault is FaultSide.SENDER:
                refusals.append(verdict)
        slow_downs += self.limiters.repeated(limiter, slot.account, unexplained)
        if slot.delivered:
            limiter.delivered(slot.account)
        elif refusals:
            first, sender = refusals[0], await self.limiters.sender(slot)
            reply, status = first.text[:200], f"{first.code} {first.enhanced or ''}".rstrip()
            about_us, about_source = first.is_before_mail, self._refuse_source(refusals, reached, routed)
            limiter.refused_as_sender(now, reply, status, sender, about_us=about_us, about_source=about_source)
            if about_source:  # another source takes the mail
                judgements = defer_refusals(judgements)
        if slow_downs:
            first, sender = slow_downs[0], await self.limiters.sender(slot)
            limiter.slow_down(now, first.text[:200], sender, about_us=first.is_before_mail)
        return judgements

    def _refuse_source(self, refusals: list[Verdict], reached: Reached, routed: Routed) -> bool:
        """Whether refusals are about the source's address: before the mail, or because they quote the address.

        A reply to the message itself does not count, because an account can provoke it. False as well if no other
        source can be used: then the rules for all mail apply.
        """
        source, dialled = routed.route.source, reached.contact.address
        if source is None or dialled is None:
            return False
        address = re.escape(str(source.address(ip_address(dialled).version)))
        quoted = re.compile(rf"(?<![0-9a-f.:]){address}(?![0-9a-f:]|\.[0-9])", re.IGNORECASE)
        about_source = any(
            verdict.stage in (Stage.GREETING, Stage.EHLO)
            or (verdict.stage in (Stage.MAIL, Stage.RCPT) and quoted.search(verdict.text))
            for verdict in refusals
        )
        return about_source and self.sources.has_other(routed.envelope, reached.limiter.base, source.name)


def defer_refusals(judgements: Iterable[Judgement]) -> list[Judgement]:
    """The judgements with a deferral instead of a bounce wherever the server refused this sender."""
    return [
        judgement._replace(result=RecipientStatus.DEFERRED)
        if judgement.fault is FaultSide.SENDER and judgement.result is RecipientStatus.BOUNCED
        else judgement
        for judgement in judgements
    ]


def is_every_rcpt_deferred(verdicts: Iterable[Verdict]) -> bool:
    """Whether every RCPT was deferred: Postfix's postscreen accepts mail only on the next connection."""
    remote = [verdict for verdict in verdicts if verdict.kind is not ResultKind.LOCAL]
    return bool(remote) and all(
        verdict.kind is ResultKind.DEFERRED and verdict.stage is Stage.RCPT for verdict in remote
    )
