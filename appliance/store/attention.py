"""Stores problems that need a person, and queues the mail about them: each problem once per person.

A row stays open until a check no longer finds the problem. A person has a mark, `notified_until`: open problems that
opened after it are new to that person. The transaction that queues the mail moves the mark, so neither a restart nor
another node sends it again. The mail has no envelope sender: it is free, has no events, and counts in no rate.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import asdict

from appliance.environment import Environment
from appliance.errors import Refused
from appliance.message.addresses import Address, parse
from appliance.message.system_mail import notice_mail
from appliance.model.attention import (
    MACHINE,
    AttentionItem,
    AttentionKind,
    NotifiedPerson,
    Notify,
    Severity,
    StoredProblem,
    changes,
)
from appliance.model.database import Feature
from appliance.store.body_parts import add as count_bytes
from appliance.store.body_parts import write_system_message
from appliance.store.engine import StorePart, Tx, first, one, record, rows, run
from appliance.store.statistics import UNTRIED_BUCKET
from appliance.store.suppressions import suppressed
from appliance.telemetry.log import get_logger
from appliance.times import DAY, HOUR

DIGEST_EVERY = DAY
ENDED_KEPT = DAY  # a problem that returns within this time is the same
ENDED_MOST = 200  # per account, beyond those of one check: it can create and revoke expiring keys all day
PEOPLE_NOTIFIED = 100  # per round

log = get_logger("store")

_COLUMNS = "kind, subject, severity, title, detail, link, since, opened_at, ended_at, node"
_OF = f"SELECT {_COLUMNS} FROM attention WHERE account_id = :account_id ORDER BY node, kind, subject"
_SAVE = f"""INSERT INTO attention (account_id, {_COLUMNS})
    VALUES (:account_id, :kind, :subject, :severity, :title, :detail, :link, :since, :opened_at, :ended_at, :node)
    ON CONFLICT (account_id, node, kind, subject) DO UPDATE SET severity = excluded.severity, title = excluded.title,
        detail = excluded.detail, link = excluded.link, since = excluded.since, opened_at = excluded.opened_at,
        ended_at = excluded.ended_at"""
_TRIM = """DELETE FROM attention WHERE account_id = :account_id AND ended_at < (SELECT e.ended_at FROM attention e
    WHERE e.account_id = :account_id AND e.ended_at IS NOT NULL ORDER BY e.ended_at DESC LIMIT 1 OFFSET :most)"""
_OLD = """ended_at < :before OR (account_id <> ''
    AND NOT EXISTS (SELECT 1 FROM users u WHERE u.account_id = attention.account_id))"""
_ANY_OLD = f"SELECT EXISTS (SELECT 1 FROM attention WHERE {_OLD})"
_FORGET = f"DELETE FROM attention WHERE {_OLD}"
# An administrator also gets the problems of the machine.
_NEW_TO = """p.account_id IN (u.account_id, CASE WHEN u.role = 'admin' THEN '' ELSE u.account_id END)
    AND p.ended_at IS NULL AND p.opened_at > u.notified_until"""
_DUE = f"""SELECT u.id, u.email, u.notify FROM users u
    WHERE (u.notify = 'at_once' OR (u.notify = 'daily' AND u.notified_at <= :digest_before))
        AND EXISTS (SELECT 1 FROM attention p WHERE {_NEW_TO})"""
_NEW = f"""SELECT {", ".join(f"p.{name}" for name in _COLUMNS.split(", "))} FROM users u JOIN attention p ON {_NEW_TO}
    WHERE u.id = :user_id ORDER BY p.severity, p.opened_at"""
_NOTIFIED = "UPDATE users SET notified_until = :until, notified_at = :now WHERE id = :user_id"
_NOTIFY = "SELECT notify FROM users WHERE id = :user_id"
_SET_NOTIFY = "UPDATE users SET notify = :notify WHERE id = :user_id"
# An administrator's account first: several accounts may send from one domain.
_SENDER = """SELECT d.account_id FROM domains d JOIN accounts a ON a.id = d.account_id
    WHERE d.name = :domain AND d.usable = 1 AND d.removed_at IS NULL AND a.suspended = 0
    ORDER BY CASE WHEN EXISTS (SELECT 1 FROM users u WHERE u.account_id = a.id AND u.role = 'admin') THEN 0 ELSE 1 END,
        d.account_id LIMIT 1"""
_RECENT = f"""SELECT kind, sum(recipients), sum(CASE WHEN hour >= :day THEN recipients ELSE 0 END) FROM hourly_counts
    WHERE account_id = :account_id AND hour >= :since
        AND NOT (kind IN ('bounced', 'failed') AND bucket = {UNTRIED_BUCKET}) GROUP BY kind"""
_COMPLAINED = """SELECT coalesce(sum(recipients), 0) FROM daily_feedback
    WHERE account_id = :account_id AND day >= :since AND kind = 'complained'"""

# Returns the subject and text of a mail.
Compose = Callable[[NotifiedPerson, Sequence[AttentionItem]], tuple[str, str]]


class RecentMail(NamedTuple):
    delivered: int
    bounced: int
    failed: int
    complained: int
    used: int  # credits of the last day


class AttentionStore(StorePart):
    async def recent_mail(self, account_id: str, since: int) -> RecentMail:
        """Count recipients since a time. The last minute is missing: statistics have not counted it yet."""
        bindings = {"account_id": account_id, "since": since // HOUR, "day": (self.env.now() - DAY) // HOUR}

        def read(tx: Tx) -> RecentMail:
            counts = {kind: (int(total), int(day)) for kind, total, day in rows(tx, _RECENT, bindings)}
            complained = one(tx, int, _COMPLAINED, bindings | {"since": since // DAY}) or 0
            delivered, bounced, failed = (counts.get(kind, (0, 0))[0] for kind in ("delivered", "bounced", "failed"))
            return RecentMail(delivered, bounced, failed, complained, counts.get("sent", (0, 0))[1])

        return await self.engine.scan(read, account_id)

    # ---- problems

    async def of(self, account_id: str) -> list[StoredProblem]:
        """The problems of an account or of the machine that are open, or ended within a day."""
        bindings = {"account_id": account_id}
        return await self.engine.scan(lambda tx: [_problem(*row) for row in rows(tx, _OF, bindings)], account_id)

    async def observe(self, account_id: str, problems: Sequence[AttentionItem], node: str = "") -> None:
        """Record a check's result. A check that changes nothing writes nothing."""
        now = self.env.now()

        def changed(stored: Sequence[StoredProblem]) -> list[StoredProblem]:
            return changes([row for row in stored if row.node == node], problems, now, node)

        def work(tx: Tx) -> None:
            for row in changed([_problem(*columns) for columns in rows(tx, _OF, {"account_id": account_id})]):
                run(tx, _SAVE, _row(row) | {"account_id": account_id})
            run(tx, _TRIM, {"account_id": account_id, "most": ENDED_MOST})

        if changed(await self.of(account_id)):
            await self.engine.write(work, large=True)

    async def end_of_nodes(self, running: Sequence[str]) -> None:
        """End the problems of nodes that no longer run."""
        gone = {row.node for row in await self.of(MACHINE) if row.node and row.ended_at is None} - set(running)
        for node in gone:
            await self.observe(MACHINE, (), node)

    async def forget(self) -> None:
        bindings = {"before": self.env.now() - ENDED_KEPT}
        if await self.engine.scan(lambda tx: one(tx, bool, _ANY_OLD, bindings)):
            await self.engine.write(lambda tx: run(tx, _FORGET, bindings), large=True)

    # ---- mail

    async def people_to_notify(self) -> list[NotifiedPerson]:
        bindings = {"digest_before": self.env.now() - DIGEST_EVERY, "most": PEOPLE_NOTIFIED}
        query = f"{_DUE} ORDER BY u.notified_at, u.id LIMIT :most"
        return await self.engine.scan(lambda tx: [_person(*row) for row in rows(tx, query, bindings)])

    async def notify(self, user_id: str, sender: Address, compose: Compose, *, simulated: bool) -> bool:
        """Queue one mail with all problems that are new to a person; False if no account may send it."""
        work = partial(self._notify, user_id=user_id, sender=sender, compose=compose, simulated=simulated)
        return await self._may_queue() and await self.engine.write(work, large=True)

    def _notify(self, tx: Tx, user_id: str, sender: Address, compose: Compose, *, simulated: bool) -> bool:
        now = self.env.now()
        due = {"user_id": user_id, "digest_before": now - DIGEST_EVERY}
        person = one(tx, _person, f"{_DUE} AND u.id = :user_id", due)
        if person is None:
            return True  # another node was first
        new = [_problem(*row) for row in rows(tx, _NEW, {"user_id": user_id})]
        if first(tx, _SENDER, {"domain": sender.domain}) is None:
            return False
        until = max(row.opened_at for row in new)
        run(tx, _NOTIFIED, {"user_id": user_id, "until": until, "now": now})
        unique = {row.problem.key: row.problem for row in new}  # a held pool concerns the account and the machine
        subject, text = compose(person, list(unique.values()))
        _queue(tx, self.env, sender, person.email, subject, text, simulated=simulated)
        return True

    async def send_secret(self, sender: Address, email: str, subject: str, text: str, *, simulated: bool) -> bool:
        """Queue a mail with a one-time link; False if it cannot be sent."""
        return await self._may_queue() and await self.engine.write(
            lambda tx: _queue(tx, self.env, sender, email, subject, text, simulated=simulated)
        )

    async def _may_queue(self) -> bool:
        try:
            await self.engine.fence_older_nodes(Feature.CONFIDENTIAL)
        except Refused as refused:
            log.warning("notification not sent", reason=refused.text)
            return False
        return True

    async def notify_setting(self, user_id: str) -> Notify:
        return await self.engine.one(Notify, _NOTIFY, {"user_id": user_id}) or Notify.AT_ONCE

    async def set_notify(self, user_id: str, notify: Notify) -> None:
        await self.engine.write(lambda tx: run(tx, _SET_NOTIFY, {"user_id": user_id, "notify": notify.value}))


def _queue(tx: Tx, env: Environment, sender: Address, email: str, subject: str, text: str, *, simulated: bool) -> bool:
    """Queue a mail that only its recipient can read, not all viewers of the account that sends it."""
    account = first(tx, _SENDER, {"domain": sender.domain})
    try:
        recipient = parse(email, "email")
    except Refused:  # such as the first user of an installation, owner@localhost
        return False
    if account is None or suppressed(tx, [(account[0], recipient.key)]):
        return False
    message_id, now = env.identifier("msg"), env.now()
    mime = notice_mail(message_id, sender, recipient, subject, text, now)
    write = partial(write_system_message, sender=sender.text, recipient=recipient, subject=subject, mime=mime)
    size = write(tx, env, account[0], message_id, now=now, simulated=simulated, confidential=True)
    count_bytes(tx, account[0], size)
    return True


def _problem(kind: str, subject: str, severity: str, *columns: Any) -> StoredProblem:
    *texts, opened_at, ended_at, node = columns
    return StoredProblem(
        AttentionItem(AttentionKind(kind), subject, Severity(severity), *texts), opened_at, ended_at, node
    )


_person = record(NotifiedPerson)


def _row(row: StoredProblem) -> dict[str, Any]:
    return {**asdict(row.problem), "opened_at": row.opened_at, "ended_at": row.ended_at, "node": row.node}
