"""Writes and queues the server's own mail to people: problems, invitations, forgotten passwords.

`notifications.from` is the sender. Without it, or if no account may send from its domain, no mail is queued, and links
are shown on the screen only. Such mail is free of charge and appears in no statistics.
"""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from appliance.config.settings import Config, DeliveryMode
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.intake import account_rules
from appliance.message.addresses import Address, parse
from appliance.model.accounts import PasswordLink
from appliance.model.attention import AttentionItem, NotifiedPerson, Notify
from appliance.model.dashboard import Actor
from appliance.store import Store
from appliance.store.people import FORGOTTEN_LIFETIME
from appliance.telemetry.log import get_logger
from appliance.times import HOUR, rfc3339

NOTICE_SENDER = "Mail appliance"
PROBLEMS_LISTED = 50  # in one mail
PASSWORD_MAIL = Actor("service", "password mail")

log = get_logger("attention")


class Mailer(Struct, frozen=True):
    config: Config
    store: Store
    env: Environment

    @property
    def sender(self) -> Address | None:
        address = self.config.notifications.from_
        return parse(f"{NOTICE_SENDER} <{address}>", "notifications.from") if address else None

    @property
    def simulated(self) -> bool:
        return self.config.delivery.mode is DeliveryMode.SANDBOX

    async def mail_link(self, link: PasswordLink, token: str, account_name: str) -> bool:
        """Mail an invitation or a password link to its person. Return whether the mail is queued."""
        if self.sender is None:
            return False
        base_url = self.config.http.base_url
        url = account_rules.password_link(base_url, link.email, token)
        subject, text = link_texts(link, url, account_name, base_url)
        return await self.store.attention.send_secret(self.sender, link.email, subject, text, simulated=self.simulated)

    async def mail_forgotten(self, email: str, client: str) -> None:
        """Mail a password link to the user with this address; nothing without such a user. Errors are only logged."""
        store = self.store
        try:
            if (user := await store.accounts.user_by_email(email)) is None:
                return
            async with store.audit.noting(PASSWORD_MAIL, "password.forgotten", client, (user.account_id,), user.email):
                link, token = await store.people.reset(user.id, FORGOTTEN_LIFETIME)
            await self.mail_link(link, token, user.account_name)
        except StorageUnavailable as outage:
            log.warning("password link not mailed: storage unavailable", reason=outage.text)
        except Exception:
            log.exception("password link not mailed")

    async def mail_problems(self, person: NotifiedPerson) -> bool:
        """Mail the problems that are new to a person. Return False if no account may send from the sender's domain."""
        if self.sender is None:
            return False
        compose = partial(problem_texts, base_url=self.config.http.base_url)
        return await self.store.attention.notify(person.id, self.sender, compose, simulated=self.simulated)


def link_texts(link: PasswordLink, url: str, account_name: str, base_url: str) -> tuple[str, str]:
    hours = (link.expires_at - link.created_at) // HOUR
    lifetime = f"{hours // 24} days" if hours > 24 else "1 hour" if hours == 1 else f"{hours} hours"
    if link.user_id is None:
        subject = f"Invitation to {account_name} on {_host(base_url)}"
        opening = f"You are invited to the account {account_name} on {base_url}."
        ending = "If you do not expect this invitation, ignore this mail."
    else:
        subject = f"Set a new password on {_host(base_url)}"
        opening = f"A new password was requested for {link.email} on {base_url}."
        ending = "If it was not you, ignore this mail: your password does not change."
    steps = f"Open this link to set your password. It works once, within {lifetime}:"
    return subject, f"{opening}\n\n{steps}\n\n{url}\n\n{ending}\n"


def problem_texts(person: NotifiedPerson, problems: Sequence[AttentionItem], base_url: str) -> tuple[str, str]:
    first, *others = problems
    subject = f"[{_host(base_url)}] {first.title}" + (f", and {len(others)} more" if others else "")
    parts = []
    for problem in problems[:PROBLEMS_LISTED]:
        since = "" if problem.since is None else f"Since {rfc3339(problem.since)[:16].replace('T', ' ')} UTC. "
        title = f"{problem.severity.upper()}: {problem.title}"
        parts.append(f"{title}\n{since}{problem.detail}\n{base_url}{problem.link}\n")
    if (count := len(problems) - PROBLEMS_LISTED) > 0:
        parts.append(f"And {count:,} more: {base_url}/dashboard\n")
    often = "once a day" if person.notify is Notify.DAILY else "at once"
    ending = f"You get mail about each new problem {often}. Change this at {base_url}/dashboard/account\n"
    return subject, "\n".join([*parts, ending])


def _host(base_url: str) -> str:
    return base_url.partition("://")[2]
