"""The webhook of each account, and its posts: written with the event itself, found when due, updated by each attempt.

An account has one URL for its events, with the secret that signs them and the format of their bodies.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

from msgspec import field

from appliance.concurrency.wake import Wake
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.database import Feature
from appliance.model.feedback import FeedbackRecipient
from appliance.model.mail import DueRecipient, MessageLabels, header_id_of
from appliance.model.webhooks import (
    DuePost,
    EventType,
    Lane,
    PostResult,
    PostStatus,
    SealedSecret,
    Trigger,
    Webhook,
    WebhookFormat,
    WebhookOptions,
    envelope,
)
from appliance.store.engine import Bulk, Row, StorePart, Tx, distinct, one, owned, rows, run
from appliance.store.message_records import readable_metadata, readable_tags
from appliance.times import HOUR, rfc3339
from appliance.webhook.formats import shaped

_COLUMNS = """id, account_id, url, events, enabled, secret, secret_hint, created_at, updated_at, last_success_at,
    last_failure_at, format"""
# A deleted webhook has no account, so neither of these finds it.
_OF_ACCOUNT = f"SELECT {_COLUMNS} FROM webhooks WHERE account_id = :account_id"
_BY_ID = f"SELECT {_COLUMNS} FROM webhooks WHERE id = :id AND account_id IS NOT NULL"
_UPDATE = f"""UPDATE webhooks SET url = :url, events = :events, enabled = :enabled, format = :format,
    updated_at = :now WHERE account_id = :account_id RETURNING {_COLUMNS}"""
_INSERT = f"""INSERT INTO webhooks (id, account_id, url, events, enabled, secret, secret_hint, created_at, updated_at,
        format)
    VALUES (:id, :account_id, :url, :events, :enabled, :secret, :secret_hint, :now, :now, :format)
    RETURNING {_COLUMNS}"""
# The log may be long: the row stays, without its secret, until retention has deleted the log.
DELETE_WEBHOOK = """UPDATE webhooks SET account_id = NULL, enabled = 0, secret = x'', secret_hint = ''
    WHERE account_id = :account_id RETURNING id"""
_SIGN_WITH = """UPDATE webhooks SET secret = :secret, secret_hint = :secret_hint, updated_at = :now
    WHERE account_id = :account_id AND id = :id RETURNING id"""


class WebhookStore(StorePart):
    async def of(self, account_id: str) -> Webhook | None:
        return await self.engine.one(_webhook, _OF_ACCOUNT, {"account_id": account_id})

    async def existing(self, account_id: str) -> Webhook:
        return await self.engine.read(lambda tx: existing_webhook(tx, account_id))

    async def by_id(self, webhook_id: str) -> Webhook | None:
        return await self.engine.one(_webhook, _BY_ID, {"id": webhook_id})

    async def save(
        self,
        account_id: str,
        settings: WebhookOptions,
        new_id: str,
        new_secret: SealedSecret,
        replaces: str | None = None,
    ) -> tuple[Webhook, bool]:
        """Change the account's webhook, or create one with this id and secret; return whether it was created.

        Refuse with a conflict unless `replaces` is the time of the last change; empty: there is no webhook.
        """
        if settings.format is not WebhookFormat.NATIVE:
            await self.engine.fence_older_nodes(Feature.FORMATS)
        row: dict[str, Any] = {"id": new_id, "account_id": account_id, "now": self.env.now()}
        row |= {"secret": new_secret.sealed, "secret_hint": new_secret.hint, "url": settings.url}
        row |= {"events": " ".join(settings.events), "enabled": int(settings.enabled)}
        row["format"] = settings.format.value

        def work(tx: Tx) -> tuple[Webhook, bool]:
            if replaces is not None:
                current = one(tx, _webhook, _OF_ACCOUNT, {"account_id": account_id})
                if replaces != ("" if current is None else rfc3339(current.updated_at)):
                    text = "Someone else has changed the webhook meanwhile. Reload to see the new settings, then save."
                    raise Refused(Code.CONFLICT, text)
            changed = one(tx, _webhook, _UPDATE, row)
            return (changed, False) if changed else (_webhook(*rows(tx, _INSERT, row)[0]), True)

        return await self.engine.write(work)

    async def replace_secret(self, webhook: Webhook, secret: SealedSecret) -> None:
        row = {"account_id": webhook.account_id, "id": webhook.id, "now": self.env.now()}
        if not await self.engine.change(_SIGN_WITH, {**row, "secret": secret.sealed, "secret_hint": secret.hint}):
            raise _none()

    async def delete(self, account_id: str) -> None:
        """Delete the account's webhook, its pending posts and its log."""
        if not await self.engine.change(DELETE_WEBHOOK, {"account_id": account_id}):
            raise _none()


# ---- steps of a transaction
def existing_webhook(tx: Tx, account_id: str) -> Webhook:
    webhook = one(tx, _webhook, _OF_ACCOUNT, {"account_id": account_id})
    if webhook is None:
        raise _none()
    return webhook


def enabled_webhook(tx: Tx, account_id: str) -> Webhook:
    webhook = existing_webhook(tx, account_id)
    if not webhook.enabled:
        raise Refused(Code.CONFLICT, "The webhook is disabled, so nothing is posted to it. Enable it first.")
    return webhook


def _none() -> Refused:
    return Refused(Code.NOT_FOUND, "This account has no webhook. Save one with PUT /v1/webhook.")


def _webhook(id_: str, account_id: str, url: str, events: str, enabled: int, secret: bytes, *rest: Any) -> Webhook:
    bindings = tuple(EventType(item) for item in events.split())
    rest = (*rest[:-1], WebhookFormat(rest[-1]))
    return Webhook(id_, account_id, url, bindings, bool(enabled), bytes(secret), *rest)


# ---- events

INSERT_EVENTS = Bulk("""INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
    VALUES {(?, ?, ?, ?, ?, ?b, ?i)}""")
_LABELS = Bulk("""SELECT id, envelope_from, source, header_id, tags, metadata, stream FROM messages
    WHERE (account_id, id) IN (VALUES {(?, ?)})""")


def labels_of(tx: Tx, messages: Iterable[tuple[str, str]]) -> dict[str, MessageLabels]:
    return {
        message_id: MessageLabels(
            header_id or (None if source == "smtp" else header_id_of(message_id, envelope_from.rpartition("@")[2])),
            readable_tags(tags) if tags != "[]" else (),
            {} if metadata is None else readable_metadata(metadata),
            stream,
        )
        for message_id, envelope_from, source, header_id, tags, metadata, stream in _LABELS.run(tx, sorted(messages))
    }


def event_row(
    event_id: str,
    kind: EventType,
    at: int,
    recipient: DueRecipient | FeedbackRecipient,
    labels: Mapping[str, MessageLabels],
    *result: Any,
) -> Row:
    """The row of an event; `result` is the SMTP code, the response and the bounce class, as far as there are any."""
    body = envelope(event_id, kind, at, recipient, labels.get(recipient.message_id, MessageLabels()), *result)
    return event_id, recipient.account_id, recipient.message_id, recipient.id, str(kind), body, at


# ---- posts

NATIVE = WebhookFormat.NATIVE.value
POSTS_CHANGED = 500  # posts given up in one transaction

_WHO_WANTS = Bulk("SELECT account_id, id, url, events, format FROM webhooks WHERE enabled = 1 AND account_id IN ({?})")
INSERT_POSTS = Bulk("""INSERT INTO webhook_deliveries (webhook_id, id, event_id, type, message_id, recipient_id, url,
        cause, status, request_body, created_at, next_attempt_at, format)
    VALUES {(?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?b, ?i, ?i, ?)}""")
# The last post succeeded, also before a restart.
_PROVEN = "coalesce(w.last_success_at, 0) > coalesce(w.last_failure_at, 0)"
_LANES_OF = Bulk(f"""SELECT w.id, c.cause, {_PROVEN} FROM webhooks w
    JOIN ({" UNION ALL ".join(f"SELECT '{item}' AS cause" for item in Trigger)}) c ON TRUE
    WHERE w.account_id IN ({{?}}) AND (SELECT min(d.next_attempt_at) FROM webhook_deliveries d
        WHERE d.cause = c.cause AND d.webhook_id = w.id AND d.next_attempt_at IS NOT NULL AND {owned("d")}) IS NOT NULL
    """)
_WAITING = f"webhook_deliveries d WHERE d.cause = :cause AND d.next_attempt_at IS NOT NULL AND {owned('d')}"
_LANES = f"""SELECT value, (SELECT {_PROVEN} FROM webhooks w WHERE w.id = value),
    (SELECT min(d.next_attempt_at) FROM {_WAITING} AND d.webhook_id = value),
    (SELECT max(d.next_attempt_at) FROM {_WAITING} AND d.webhook_id = value)
FROM ({distinct("d.webhook_id", _WAITING)}) waiting"""
_IN_LANE = f"FROM webhook_deliveries d WHERE cause = :cause AND webhook_id = :webhook_id AND {owned('d')}"
_DUE = f"""SELECT id, attempt, request_body, event_id, message_id, recipient_id, format, type {_IN_LANE}
    AND next_attempt_at <= :now ORDER BY next_attempt_at LIMIT :most"""
_NEXT_DUE = f"SELECT min(next_attempt_at) {_IN_LANE} AND next_attempt_at > :now"
_RECORD = Bulk("""
WITH new (webhook_id, id, attempts_before, status, url, response_status, response_body, error, duration_ms,
    attempted_at, next_attempt_at) AS (VALUES {(?, ?, ?i, ?, ?, ?i, ?, ?, ?i, ?i, ?i)})
UPDATE webhook_deliveries SET status = new.status, attempt = new.attempts_before + 1, url = new.url,
    response_status = new.response_status, response_body = new.response_body, error = new.error,
    duration_ms = new.duration_ms, attempted_at = new.attempted_at, next_attempt_at = new.next_attempt_at
FROM new WHERE webhook_deliveries.webhook_id = new.webhook_id AND webhook_deliveries.id = new.id
    AND webhook_deliveries.next_attempt_at IS NOT NULL AND webhook_deliveries.attempt = new.attempts_before
""")
_NOTE_SUCCESS = "UPDATE webhooks SET last_success_at = :at WHERE id = :id"
_NOTE_FAILURE = "UPDATE webhooks SET last_failure_at = :at WHERE id = :id"
_NOTE_HOUR = """INSERT INTO webhook_hours AS h (webhook_id, hour, outcome, attempts, total_ms, slowest_ms)
    VALUES (:webhook_id, :hour, :outcome, :attempts, :total_ms, :slowest_ms)
    ON CONFLICT (webhook_id, hour, outcome) DO UPDATE SET attempts = h.attempts + excluded.attempts,
        total_ms = h.total_ms + excluded.total_ms,
        slowest_ms = CASE WHEN h.slowest_ms > excluded.slowest_ms THEN h.slowest_ms ELSE excluded.slowest_ms END"""
_GIVE_UP = f"""UPDATE webhook_deliveries SET status = 'failed', error = :reason, next_attempt_at = NULL
    WHERE webhook_id = :webhook_id AND id IN (SELECT id {_IN_LANE} AND next_attempt_at <= :now LIMIT :most)
    RETURNING 1"""
_BRING_FORWARD = f"""UPDATE webhook_deliveries SET next_attempt_at = :now
    WHERE webhook_id = :webhook_id AND id IN (SELECT id {_IN_LANE} AND next_attempt_at > :beyond LIMIT :most)
    RETURNING 1"""


def post_events(tx: Tx, env: Environment, events: Sequence[Row]) -> set[str]:
    """Write the posts of these event rows for accounts that subscribe; return the accounts with new posts."""
    if not events:
        return set()
    selected = _WHO_WANTS.run(tx, [(account_id,) for account_id in {event[1] for event in events}])
    if not selected:
        return set()
    wanting = {account_id: webhook for account_id, *webhook in selected}
    new, accounts = [], set()
    for event_id, account_id, message_id, recipient_id, kind, body, at in events:
        webhook_id, url, kinds, shape = wanting.get(account_id, ("", "", "", NATIVE))
        if kind in kinds.split():
            new_id, posted = env.identifier("whd"), body if shape == NATIVE else shaped(WebhookFormat(shape), body)
            post = (webhook_id, new_id, event_id, kind, message_id, recipient_id, url, "event", posted, at, at)
            new.append((*post, shape))
            accounts.add(account_id)
    INSERT_POSTS.run(tx, new)
    return accounts


class WaitingLane(NamedTuple):
    lane: Lane
    proven: bool  # its receiver
    first_due: int
    last_due: int


class WebhookPosts(StorePart):
    posts_changed: int = POSTS_CHANGED  # in one transaction
    _wake: Wake = field(default_factory=Wake)
    # Accounts with posts committed since the dispatcher last asked. A hint: the dispatcher also polls the database.
    _new: set[str] = field(default_factory=set)

    def add_new(self, accounts: Iterable[str]) -> None:
        self._new.update(accounts)
        self._wake.set()

    @property
    def has_new(self) -> bool:
        return bool(self._new)

    def take_new(self) -> set[str]:
        accounts = set(self._new)
        self._new.clear()
        return accounts

    async def wait_for_new(self, seconds: float) -> None:
        await self._wake.wait(seconds)

    def wake(self) -> None:
        self._wake.set()

    async def lanes(self) -> tuple[list[WaitingLane], float]:
        def scan(tx: Tx) -> tuple[list[WaitingLane], float]:
            began = perf_counter()
            results = [
                WaitingLane(Lane(webhook_id, trigger), bool(proven), first_due, last_due)
                for trigger in Trigger
                for webhook_id, proven, first_due, last_due in rows(tx, _LANES, {"cause": trigger.value})
            ]
            return results, perf_counter() - began

        return await self.engine.read(scan)

    async def lanes_of(self, accounts: Iterable[str]) -> list[tuple[Lane, bool]]:
        """Lanes of these accounts with waiting posts, and whether their receivers are proven."""
        results = await self.engine.read(lambda tx: _LANES_OF.run(tx, [(account,) for account in accounts]))
        return [(Lane(webhook_id, Trigger(cause)), bool(proven)) for webhook_id, cause, proven in results]

    async def due(self, lane: Lane, most: int) -> tuple[list[DuePost], int | None]:
        bindings = _bindings(lane) | {"now": self.env.now(), "most": most}

        def read(tx: Tx) -> tuple[list[DuePost], int | None]:
            ((next_due,),) = rows(tx, _NEXT_DUE, bindings)
            due = [DuePost(lane, *(*row[:-2], WebhookFormat(row[-2]), row[-1])) for row in rows(tx, _DUE, bindings)]
            return due, next_due

        return await self.engine.read(read)

    async def record(self, results: Sequence[PostResult]) -> None:
        """Record attempts; posts that were recorded or deleted meanwhile stay unchanged."""
        await self.engine.write_item(_record, results)

    async def give_up(self, lane: Lane, reason: str) -> int:
        """Fail some due posts of a lane without an attempt; return how many. Repeat until 0."""
        return await self._slice(_GIVE_UP, lane, {"reason": reason})

    async def bring_forward(self, lane: Lane, beyond: int) -> int:
        """Make some posts due that a wrong clock put after `beyond`; return how many. Repeat until 0."""
        return await self._slice(_BRING_FORWARD, lane, {"beyond": beyond})

    async def _slice(self, statement: str, lane: Lane, bindings: dict[str, str | int]) -> int:
        query_values = bindings | _bindings(lane) | {"now": self.env.now(), "most": self.posts_changed}
        return len(await self.engine.change(statement, query_values))


def _bindings(lane: Lane) -> dict[str, str | int]:
    return {"webhook_id": lane.webhook_id, "cause": lane.trigger.value}


def _record(tx: Tx, several: Sequence[Sequence[PostResult]]) -> list[None]:
    results = list(chain.from_iterable(several))
    _RECORD.run(tx, [_result_row(result) for result in results])
    latest: dict[tuple[str, str], int] = {}  # one update per webhook
    for result in results:
        note = _NOTE_SUCCESS if result.status is PostStatus.SUCCESS else _NOTE_FAILURE
        key = note, result.post.lane.webhook_id
        latest[key] = max(result.attempted_at, latest.get(key, 0))
    for (note, webhook_id), at in latest.items():
        run(tx, note, {"id": webhook_id, "at": at})
    _count_attempts(tx, results)
    return [None] * len(several)


def _count_attempts(tx: Tx, results: Iterable[PostResult]) -> None:
    """Count attempts by hour, in the same order on every node, so that no two transactions deadlock."""
    durations: dict[tuple[str, int, str], list[int]] = {}
    for result in results:
        key = result.post.lane.webhook_id, result.attempted_at // HOUR, result.outcome.value
        durations.setdefault(key, []).append(result.duration_ms)
    for (webhook_id, hour, outcome), taken in sorted(durations.items()):
        row = {"webhook_id": webhook_id, "hour": hour, "outcome": outcome, "attempts": len(taken)}
        run(tx, _NOTE_HOUR, row | {"total_ms": sum(taken), "slowest_ms": max(taken)})


def _result_row(result: PostResult) -> Row:
    post = result.post
    asked = post.lane.webhook_id, post.id, post.attempt, result.status.value, result.url
    answer = result.response_status, result.response_body, result.error, result.duration_ms
    return *asked, *answer, result.attempted_at, result.next_attempt_at
