"""A month of a shop's mail, for pictures: written with the store's own verbs, at the times when it happened."""

import time
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from random import Random
from typing import NamedTuple

import trio

from appliance.environment import Environment
from appliance.model.feedback import NewComplaint
from appliance.model.mail import (
    Attempt,
    BounceClass,
    DueRecipient,
    LateBounce,
    NewMessage,
    NewRecipient,
    Outcome,
    RecipientStatus,
    Source,
    Suppression,
    SuppressionOrigin,
)
from appliance.store import Store
from appliance.store.pools import EVERY
from appliance.times import DAY, HOUR, SECOND
from tests import engines
from tests.running_appliance import Provisioned

COUNTED = ("hourly_counts", "hourly_stream_counts", "daily_feedback", "daily_breakdown", "counted_until")
DAYS = 27
MESSAGES = 500


class Provider(NamedTuple):
    domains: tuple[str, ...]
    pool: str
    host: str
    weight: int
    seconds: float  # an ordinary delivery takes


PROVIDERS = (
    Provider(("gmail.com", "googlemail.com"), "google", "gmail-smtp-in.l.google.com", 46, 0.9),
    Provider(("outlook.com", "hotmail.com"), "outlook", "outlook-com.olc.protection.outlook.com", 18, 1.7),
    Provider(("contoso.example",), "microsoft365", "contoso-example.mail.protection.outlook.com", 10, 1.4),
    Provider(("yahoo.com",), "yahoo", "mta5.am0.yahoodns.net", 9, 2.2),
    Provider(("gmx.net", "web.de"), "gmx", "mx00.gmx.net", 6, 1.1),
    Provider(("bakery.example", "museum.example"), "mx.hosting.example", "mx1.hosting.example", 11, 3.1),
)


class Kind(NamedTuple):
    subject: str
    text: str
    sender: str
    tag: str
    template: str | None
    stream: str
    weight: int


SHOP, LOGIN, NEWS = "Acme Shop <orders@acme.example>", "Acme <login@acme.example>", "Acme News <news@news.acme.example>"
KINDS = (
    Kind(
        "Your order {n} is on its way", "We shipped it today.", SHOP, "shipping", "order-shipped", "transactional", 34
    ),
    Kind("Your receipt for order {n}", "Thank you for order {n}.", SHOP, "receipt", "receipt", "transactional", 22),
    Kind("Your login code", "Your code is {n}.", LOGIN, "login", "login-code", "transactional", 16),
    Kind("Reset your password", "Follow the link to reset it.", LOGIN, "login", None, "transactional", 5),
    Kind("Winter is coming", "New coats, boots and scarves.", NEWS, "newsletter", "newsletter", "broadcast", 23),
)
FIRST = ("ada", "grace", "alan", "linus", "margaret", "dennis", "barbara", "ken", "radia", "anita", "hedy", "edsger")
LAST = ("lovelace", "hopper", "turing", "hamilton", "ritchie", "liskov", "perlman", "borg", "lamarr", "allen", "knuth")
BOUNCES = (
    (BounceClass.INVALID_RECIPIENT, 550, "550 5.1.1 The email account that you tried to reach does not exist."),
    (BounceClass.MAILBOX_FULL, 552, "552 5.2.2 The recipient's inbox is out of storage space."),
    (BounceClass.REPUTATION, 550, "550 5.7.1 Service unavailable, client host blocked using Spamhaus."),
)
GREYLISTED = "451 4.7.1 Greylisted, please try again in 300 seconds"


@dataclass
class Month:
    """Writes the mail of one account."""

    account: Provisioned
    end: int = field(default_factory=lambda: time.time_ns() // 1_000)
    at: int = 0
    random: Random = field(default_factory=lambda: Random(37))

    async def write(self, store: Store) -> None:
        for provider in PROVIDERS:
            for domain in provider.domains:
                insert = "INSERT INTO destinations (domain, pool, updated_at) VALUES (:domain, :pool, :now)"
                await store.engine.change(insert, {"domain": domain, "pool": provider.pool, "now": self.end})
        times = sorted(self.end - int(DAYS * DAY * self.random.random() ** 1.3) for _ in range(MESSAGES))
        for number, at in enumerate(times):
            self.at = at
            await self._send(store, number, is_recent=at > self.end - 2 * HOUR)
        self.at = self.end

    async def _send(self, store: Store, number: int, *, is_recent: bool) -> None:
        (kind,) = self.random.choices(KINDS, [each.weight for each in KINDS])
        (provider,) = self.random.choices(PROVIDERS, [each.weight for each in PROVIDERS])
        address = f"{self.random.choice(FIRST)}.{self.random.choice(LAST)}@{self.random.choice(provider.domains)}"
        await store.messages.accept(self._message(store, kind, address, 10_000 + number))
        low = int(kind.stream == "broadcast")
        waiting = await store.queue.due(simulated=False, most=1, low=low, since=self.at - SECOND)
        if not waiting:  # suppressed
            return
        (due,) = waiting
        await store.queue.record([self._outcome(due, provider, is_recent=is_recent)])
        chance = self.random.random()
        if chance < 0.012:
            await self._returned(store, due, complains=kind.stream == "broadcast" or chance < 0.002)
        elif kind.stream == "broadcast" and chance < 0.05:
            await store.unsubscriptions.add(self.account.account_id, "stream:broadcast", address)

    def _message(self, store: Store, kind: Kind, address: str, number: int) -> NewMessage:
        content = EmailMessage()
        content["From"], content["To"], content["Subject"] = kind.sender, address, kind.subject.format(n=number)
        content.set_content(kind.text.format(n=number) + "\n")
        content.add_alternative(f"<h1>{kind.subject.format(n=number)}</h1><p>{kind.text.format(n=number)}</p>", "html")
        env = store.messages.env
        return NewMessage(
            id=env.identifier("msg"),
            account_id=self.account.account_id,
            request_id=env.identifier("req"),
            source=Source.SMTP if kind.tag == "receipt" else Source.API,
            simulated=False,
            sender=kind.sender,
            envelope_from=kind.sender.partition("<")[2].rstrip(">"),
            subject=kind.subject.format(n=number),
            tags=(kind.tag,),
            template_alias=kind.template,
            template_version=1 if kind.template else None,
            mime=content.as_bytes(),
            receipt=None,
            recipients=(NewRecipient(env.identifier("rcp"), address, address, address.partition("@")[2]),),
            credits=1,
            created_at=self.at,
            idempotency=None,
            metadata=f'{{"order":"{number}"}}',
            stream=kind.stream,
            low=int(kind.stream == "broadcast"),
        )

    def _outcome(self, due: DueRecipient, provider: Provider, *, is_recent: bool) -> Outcome:
        took = int(provider.seconds * SECOND * self.random.lognormvariate(0, 0.5))
        attempts: list[Attempt] = []
        chance = self.random.random()
        if is_recent and chance < 0.2:
            attempts.append(self._attempt(provider, 451, GREYLISTED, took))
            later = self.end + self.random.randint(5, 50) * 60 * SECOND
            temporary = BounceClass.TEMPORARY
            return self._result(due, RecipientStatus.DEFERRED, attempts, next_attempt_at=later, bounce_class=temporary)
        if chance < 0.06:
            attempts.append(self._attempt(provider, 451, GREYLISTED, took))
            self.at += 330 * SECOND
        if chance > 0.967:
            (bounce, code, reply) = self.random.choice(BOUNCES)
            attempts.append(self._attempt(provider, code, reply, took))
            suppress = (
                Suppression(due.address, reply, self.at, SuppressionOrigin.BOUNCE) if bounce is BOUNCES[0][0] else None
            )
            return self._result(due, RecipientStatus.BOUNCED, attempts, bounce_class=bounce, suppress=suppress)
        attempts.append(self._attempt(provider, 250, f"250 2.0.0 OK {self.random.randrange(16**10):x} - gsmtp", took))
        return self._result(due, RecipientStatus.DELIVERED, attempts)

    def _result(self, due: DueRecipient, status: RecipientStatus, attempts: list[Attempt], **more: object) -> Outcome:
        self.at = attempts[-1].finished_at
        return Outcome(due, status, tuple(attempts), at=self.at, **more)  # type: ignore[arg-type]

    def _attempt(self, provider: Provider, code: int, reply: str, took: int) -> Attempt:
        times = self.at, self.at + took
        tls = "TLSv1.3, certificate verified"
        return Attempt(*times, code, reply, provider.pool, provider.host, "192.0.2.25", tls, None, None)

    async def _returned(self, store: Store, due: DueRecipient, *, complains: bool) -> None:
        self.at += 90 * SECOND
        recipient = await store.feedback.recipient(due.id, due.id, "bounces.acme.example")
        if recipient is None:
            return
        step = store.feedback.late_bounce(
            recipient,
            LateBounce(self.at, 550, "550 5.2.1 The mailbox is disabled", BounceClass.INVALID_RECIPIENT),
            suppresses=True,
        )
        if complains:
            step = store.feedback.complaint(recipient, NewComplaint("abuse", "Yahoo! Feedback Loop"))
        await store.feedback.finish(await store.feedback.add(["fbl@bounces.acme.example"], b"mail"), [step])


def write_month(data_dir: Path, account: Provisioned) -> None:
    """Write the mail beside a running program, which is paused meanwhile and would otherwise deliver it.

    The program counts mail in the order of its ids. It has counted up to now, and this mail is older: it counts again.
    """
    month = Month(account)

    async def write() -> None:
        async with engines.beside(data_dir, Environment(now=lambda: month.at or month.end)) as store:
            await store.pools.hold(EVERY, "a month is written")
            await month.write(store)
            for table in COUNTED:
                await store.engine.change(f"DELETE FROM {table}", {})
            await store.pools.release(EVERY)

    trio.run(write)
