"""In charge of posts that wait: written with the event itself, found by when they are due, updated by each attempt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import apsw

from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus, Trigger
from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.new_posts import Bell
from appliance.store.sql import Many, Row, first, rows, run

SLICE = 500  # posts given up in one transaction

_WHO_WANTS = Many("SELECT account_id, id, url, events FROM webhooks WHERE enabled = 1 AND account_id IN ({rows})", "?")
INSERT_POSTS = Many(
    """
INSERT INTO webhook_deliveries (webhook_id, id, event_id, type, message_id, recipient_id, url, cause, status,
    request_body, created_at, next_attempt_at)
VALUES {rows}
""",
    "(?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?)",
)
# SQLite has no skip scan over a partial index, so this walks it from one webhook to the next.
_LANES = """
WITH RECURSIVE waiting (webhook_id) AS (
    SELECT min(webhook_id) FROM webhook_deliveries WHERE cause = :cause AND next_attempt_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(d.webhook_id) FROM webhook_deliveries d
        WHERE d.cause = :cause AND d.next_attempt_at IS NOT NULL AND d.webhook_id > waiting.webhook_id)
    FROM waiting WHERE waiting.webhook_id IS NOT NULL
)
SELECT webhook_id, (SELECT min(d.next_attempt_at) FROM webhook_deliveries d
    WHERE d.cause = :cause AND d.webhook_id = waiting.webhook_id AND d.next_attempt_at IS NOT NULL),
    (SELECT max(d.next_attempt_at) FROM webhook_deliveries d
    WHERE d.cause = :cause AND d.webhook_id = waiting.webhook_id AND d.next_attempt_at IS NOT NULL)
FROM waiting WHERE webhook_id IS NOT NULL
"""
_IN_LANE = "FROM webhook_deliveries WHERE cause = :cause AND webhook_id = :webhook_id"
_DUE = f"""
SELECT id, attempt, request_body, event_id, message_id, recipient_id {_IN_LANE} AND next_attempt_at <= :now
ORDER BY next_attempt_at LIMIT :most
"""
_NEXT_DUE = f"SELECT min(next_attempt_at) {_IN_LANE} AND next_attempt_at > :now"
_RECORD = Many(
    """
WITH new (webhook_id, id, attempts_before, status, url, response_status, response_body, error, duration_ms,
    attempted_at, next_attempt_at) AS (VALUES {rows})
UPDATE webhook_deliveries SET status = new.status, attempt = new.attempts_before + 1, url = new.url,
    response_status = new.response_status, response_body = new.response_body, error = new.error,
    duration_ms = new.duration_ms, attempted_at = new.attempted_at, next_attempt_at = new.next_attempt_at
FROM new WHERE webhook_deliveries.webhook_id = new.webhook_id AND webhook_deliveries.id = new.id
    AND webhook_deliveries.next_attempt_at IS NOT NULL AND webhook_deliveries.attempt = new.attempts_before
""",
    "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
)
_NOTE_SUCCESS = "UPDATE webhooks SET last_success_at = :at WHERE id = :id"
_NOTE_FAILURE = "UPDATE webhooks SET last_failure_at = :at WHERE id = :id"
_GIVE_UP = f"""
UPDATE webhook_deliveries SET status = 'failed', error = :reason, next_attempt_at = NULL
WHERE webhook_id = :webhook_id AND id IN (SELECT id {_IN_LANE} AND next_attempt_at <= :now LIMIT :most) RETURNING 1
"""  # noqa: S608 - our own words
_BRING_FORWARD = f"""
UPDATE webhook_deliveries SET next_attempt_at = :now
WHERE webhook_id = :webhook_id AND id IN (SELECT id {_IN_LANE} AND next_attempt_at > :beyond LIMIT :most) RETURNING 1
"""  # noqa: S608 - our own words


def post_events(c: apsw.Connection, outside: Outside, events: Sequence[Row]) -> set[str]:
    """As a step of the transaction that writes them: have events posted where their account wants them.

    An event is a row of its table. Returned are the accounts that have something to be posted now.
    """
    if not events:
        return set()
    found = _WHO_WANTS.run(c, [(account_id,) for account_id in {event[1] for event in events}])
    if not found:
        return set()
    wanting = {account_id: (webhook_id, url, wanted.split()) for account_id, webhook_id, url, wanted in found}
    new, accounts = [], set()
    for event_id, account_id, message_id, recipient_id, kind, body, at in events:
        webhook_id, url, wanted = wanting.get(account_id, ("", "", ()))
        if kind in wanted:
            new_id = outside.identifier("whd")
            new.append((webhook_id, new_id, event_id, kind, message_id, recipient_id, url, "event", body, at, at))
            accounts.add(account_id)
    INSERT_POSTS.run(c, new)
    return accounts


@dataclass(frozen=True, slots=True)
class WebhookPosts:
    """Posts that wait, lane by lane, and what became of them. The bell is rung when there are new ones."""

    engine: Engine
    outside: Outside
    bell: Bell

    def lanes(self) -> list[tuple[Lane, int, int]]:
        """Every lane in which something waits, and when the first and the last of it is due."""
        return self.engine.read(
            lambda c: [
                (Lane(webhook_id, trigger), first_due, last_due)
                for trigger in Trigger
                for webhook_id, first_due, last_due in rows(c, _LANES, {"cause": trigger.value})
            ]
        )

    def due(self, lane: Lane, most: int) -> list[DuePost]:
        """Posts of a lane whose time has come, the longest waiting first."""
        wanted = _bindings(lane) | {"now": self.outside.now(), "most": most}
        return self.engine.read(lambda c: [DuePost(lane, *row) for row in rows(c, _DUE, wanted)])

    def next_due(self, lane: Lane) -> int | None:
        """When the next post of a lane that is not due yet will be."""
        row = self.engine.read(lambda c: first(c, _NEXT_DUE, _bindings(lane) | {"now": self.outside.now()}))
        return None if row is None else row[0]

    async def record(self, results: Sequence[PostResult]) -> None:
        """Write down attempts; what was recorded or deleted meanwhile stays as it is."""
        await self.engine.write_item(_record, results)

    async def give_up(self, lane: Lane, reason: str) -> int:
        """Fail some of what is due in a lane, untried; how many these were. Call again until it says 0."""
        return await self._slice(_GIVE_UP, lane, {"reason": reason})

    async def bring_forward(self, lane: Lane, beyond: int) -> int:
        """Make some of what waits for a time after `beyond` due now, because the clock was wrong; how many.

        Call again until it says 0.
        """
        return await self._slice(_BRING_FORWARD, lane, {"beyond": beyond})

    async def _slice(self, statement: str, lane: Lane, bindings: dict[str, str | int]) -> int:
        wanted = bindings | _bindings(lane) | {"now": self.outside.now(), "most": SLICE}
        return len(await self.engine.write(lambda c: rows(c, statement, wanted)))


def _bindings(lane: Lane) -> dict[str, str | int]:
    return {"webhook_id": lane.webhook_id, "cause": lane.trigger.value}


def _record(c: apsw.Connection, several: Sequence[Sequence[PostResult]]) -> list[None]:
    results = list(chain.from_iterable(several))
    _RECORD.run(c, [_result_row(result) for result in results])
    _note(c, _NOTE_SUCCESS, (result for result in results if result.status is PostStatus.SUCCESS))
    _note(c, _NOTE_FAILURE, (result for result in results if result.status is not PostStatus.SUCCESS))
    return [None] * len(several)


def _note(c: apsw.Connection, statement: str, results: Iterable[PostResult]) -> None:
    """Tell each webhook when it was last like this: once, however many results there are."""
    latest: dict[str, int] = {}
    for result in results:
        webhook_id = result.post.lane.webhook_id
        latest[webhook_id] = max(result.attempted_at, latest.get(webhook_id, 0))
    for webhook_id, at in latest.items():
        run(c, statement, {"id": webhook_id, "at": at})


def _result_row(result: PostResult) -> Row:
    return (
        result.post.lane.webhook_id,
        result.post.id,
        result.post.attempt,
        result.status.value,
        result.url,
        result.response_status,
        result.response_body,
        result.error,
        result.duration_ms,
        result.attempted_at,
        result.next_attempt_at,
    )
