"""Checks for problems every half minute, records them, and mails new ones to people.

Every node checks its own machine; one node checks the accounts and sends the mail. A problem is recorded when two
checks in a row find it, so that a single failed post or lookup sends no mail. A person gets a limited number of mails
an hour; problems beyond it wait for the next mail.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from appliance.attention.mail import Mailer
from appliance.attention.problems import Problems
from appliance.concurrency.wake import repeat
from appliance.errors import Refused
from appliance.intake.limits import RequestRate
from appliance.model.attention import MACHINE, AttentionItem
from appliance.store.engine import START
from appliance.telemetry.log import get_logger

ATTENTION_CHORE = "attention"
CHECK_EVERY = 30.0  # seconds
ACCOUNTS_CHECKED = 100  # at once
ACCOUNT_REST = 0.02  # seconds between two accounts, so that senders have priority
MAILS_AT_ONCE, MAILS_PER_SECOND = 10, 2 / 3600  # to one person

Key = tuple[str, str, str]  # account, kind and subject

log = get_logger("attention")


@dataclass(slots=True)
class AttentionWatch:
    problems: Problems
    mailer: Mailer
    every: float = CHECK_EVERY
    rate: RequestRate = field(init=False)
    _seen: set[Key] = field(default_factory=set)  # at the last check
    _cannot_send: bool = False

    def __post_init__(self) -> None:
        self.rate = RequestRate(MAILS_PER_SECOND, self.problems.env, MAILS_AT_ONCE)

    async def run(self) -> None:
        await repeat(self.round, log, "problems not checked", every=self.every)

    async def round(self) -> None:
        store, seen = self.problems.store, set[Key]()
        engine, of_all = store.engine, await self.problems.of_all_nodes()
        if engine.is_shared:
            await self._observe(MACHINE, await self.problems.of_node(), seen, engine.node)
        else:
            of_all += await self.problems.of_node()
        if await engine.has_chore(ATTENTION_CHORE):
            await self._observe(MACHINE, of_all, seen)
            name = START
            while accounts := await store.accounts.page(name, ACCOUNTS_CHECKED):
                for account in accounts:
                    await self._observe(account.id, await self.problems.of_account(account), seen)
                    await trio.sleep(ACCOUNT_REST)
                name = accounts[-1].name
            await store.attention.end_of_nodes([node.name for node in await engine.nodes() if not node.ended])
            await store.attention.forget()
            await self._mail()
        self._seen = seen

    async def _observe(
        self, account_id: str, problems: Sequence[AttentionItem], seen: set[Key], node: str = ""
    ) -> None:
        keys = {problem: (account_id, *problem.key) for problem in problems}
        seen |= set(keys.values())
        stored = await self.problems.store.attention.of(account_id)
        known = {(account_id, *row.problem.key) for row in stored if row.node == node and row.ended_at is None}
        lasting = [problem for problem, key in keys.items() if key in self._seen or key in known]
        await self.problems.store.attention.observe(account_id, lasting, node)

    async def _mail(self) -> None:
        if self.mailer.sender is None:
            return
        can_send = True
        for person in await self.problems.store.attention.people_to_notify():
            try:
                self.rate.take(person.id)
            except Refused:
                continue
            can_send = can_send and await self.mailer.mail_problems(person)
        if not can_send and not self._cannot_send:
            advice = "Add the domain of notifications.from to an account, or correct the setting."
            log.warning("notifications not sent: no account may send from this domain", advice=advice)
        self._cannot_send = not can_send
