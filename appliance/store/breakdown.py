"""Statistics of recipients by the day, broken down by sending domain, tag, template and provider.

Added up behind the mail, as `statistics.py` does, up to positions of its own. What is new is read and summed by the
background reader, so that the writer has only some sums to add, and adds them only if the position is still the one
that was read from. Of an account and a day each dimension has a bounded number of values: when there are more, those
with the fewest recipients are added to the others, whose value is empty.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from appliance.model.dashboard import Dimension
from appliance.outside import identifier_from
from appliance.store.engine import Many, Row, StorePart, Tx, rows, run
from appliance.store.search_index import OUTCOME
from appliance.store.statistics import (
    EVENT_LAG,
    FINAL_EVENT,
    MESSAGE_LAG,
    PROVIDER,
    SET_COUNTED,
    TAIL_ROWS,
    Counting,
    counted_until,
)
from appliance.times import DAY

ROWS_SUMMED = 250  # in one transaction, each with up to 20 tags
VALUES_KEPT = 100  # of an account, a day and a dimension
VALUES_MOST = 2 * VALUES_KEPT  # more than that are reduced to those kept
OTHERS = ""

_COLUMNS = "account_id, day, kind, sender, tags, template, provider, recipients"
# Here and below only our own words and numbers are put into SQL (S608).
_SENT = f"""SELECT m.account_id AS account_id, m.created_at / {DAY} AS day, 'sent' AS kind, m.envelope_from AS sender,
        m.tags AS tags, coalesce(m.template_alias, '') AS template, {PROVIDER} AS provider, count(*) AS recipients
    FROM {{source}} LEFT JOIN destinations d ON d.domain = r.domain
    WHERE {{wanted}} AND m.source <> 'test' AND m.envelope_from <> '' GROUP BY 1, 2, 4, 5, 6, 7"""  # noqa: S608
_FINAL = f"""SELECT e.account_id AS account_id, e.created_at / {DAY} AS day, {OUTCOME} AS kind,
        m.envelope_from AS sender, m.tags AS tags, coalesce(m.template_alias, '') AS template, {PROVIDER} AS provider,
        count(*) AS recipients
    FROM {{source}} e CROSS JOIN messages m ON m.account_id = e.account_id AND m.id = e.message_id
    CROSS JOIN recipients r ON r.message_id = e.message_id AND r.id = e.recipient_id
    LEFT JOIN destinations d ON d.domain = r.domain
    WHERE {{wanted}} AND m.source <> 'test' AND {FINAL_EVENT} GROUP BY 1, 2, 3, 4, 5, 6, 7"""  # noqa: S608
_ADD = Many("""INSERT INTO daily_breakdown (account_id, dimension, day, value, kind, recipients)
    VALUES {(?, ?, ?i, ?, ?, ?i)} ON CONFLICT (account_id, dimension, day, value, kind)
    DO UPDATE SET recipients = daily_breakdown.recipients + excluded.recipients""")
_CROWDED = Many(f"""SELECT account_id, dimension, day FROM daily_breakdown
    WHERE (account_id, dimension, day) IN (VALUES {{(?, ?, ?i)}})
    GROUP BY account_id, dimension, day HAVING count(DISTINCT value) > {VALUES_MOST}""")  # noqa: S608
_VALUES = """SELECT value FROM daily_breakdown
    WHERE account_id = :account_id AND dimension = :dimension AND day = :day AND value <> ''
    GROUP BY value ORDER BY sum(recipients) DESC, value"""
_REMOVE = Many("""DELETE FROM daily_breakdown WHERE (account_id, dimension, day, value) IN (VALUES {(?, ?, ?i, ?)})
    RETURNING kind, recipients""")
_READ = """SELECT value, kind, sum(recipients) FROM daily_breakdown
    WHERE account_id = :account_id AND dimension = :dimension AND day >= :since GROUP BY value, kind"""

_tags = msgspec.json.Decoder(tuple[str, ...])


class _Key(NamedTuple):
    """The first columns of a row."""

    account_id: str
    dimension: str
    day: int
    value: str
    kind: str


class _BrokenDown(NamedTuple):
    """How one kind of row is counted; `tail` are those of one account that are not counted yet."""

    counting: Counting
    slice: str
    tail: str


_BROKEN_DOWN = (
    _BrokenDown(
        Counting("sent by value", "msg", MESSAGE_LAG, "recipients", "message_id"),
        _SENT.format(
            source="recipients r CROSS JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id",
            wanted="r.message_id > :after AND r.message_id <= :until",
        ),
        _SENT.format(
            source="""(SELECT account_id, id, created_at, source, envelope_from, tags, template_alias FROM messages
                WHERE account_id = :account_id AND id > :after ORDER BY id LIMIT :most) m
            CROSS JOIN recipients r ON r.message_id = m.id""",
            wanted="TRUE",
        ),
    ),
    _BrokenDown(
        Counting("final by value", "evt", EVENT_LAG, "events", "id"),
        _FINAL.format(source="events", wanted="e.id > :after AND e.id <= :until"),
        _FINAL.format(
            source="""(SELECT account_id, message_id, recipient_id, type, created_at FROM events
                WHERE id > :after ORDER BY id LIMIT :most)""",
            wanted="e.account_id = :account_id",
        ),
    ),
)


class _Slice(NamedTuple):
    """What is to be added, and between which positions it was found."""

    kind: str
    after: str
    until: str
    sums: Counter[_Key]
    more: bool


@dataclass(frozen=True, slots=True)
class Breakdown(StorePart):
    rows_summed: int = ROWS_SUMMED

    async def count(self) -> bool:
        """Add up one slice of what is new; whether there is more to be added at once."""
        now, more = self.outside.now(), False
        for each in _BROKEN_DOWN:
            found = await self.engine.scan(partial(_read_slice, each, now, self.rows_summed))
            if found is not None:
                await self.engine.write(partial(_add, found), large=True)
                more = more or found.more
        return more

    async def of(self, account_id: str, dimension: Dimension, since: int) -> dict[str, Counter[str]]:
        """By value, how many recipients were sent to and what became of them, from the day of that time on.

        The value of all that are not told apart is empty.
        """
        return await self.engine.scan(partial(_read, account_id, dimension, since // DAY), account_id)


def broken_down_before(tx: Tx, until: int) -> bool:
    """Whether everything that was written before a time has been added up, so that it may be deleted."""
    return all(each.counting.end_of_slice(tx, until, 0) is None for each in _BROKEN_DOWN)


def _read_slice(each: _BrokenDown, now: int, most: int, tx: Tx) -> _Slice | None:
    """None if nothing is new; then nothing is written either."""
    counting = each.counting
    after, limit = counted_until(tx, counting.kind), identifier_from(counting.prefix, now - counting.lag)
    if limit <= after or counting.end_of_slice(tx, now - counting.lag, 0) is None:
        return None
    end = counting.end_of_slice(tx, now - counting.lag, most)
    until = end or limit
    sums = _sums(tx.gather(each.slice, _COLUMNS, {"after": after, "until": until}))
    return _Slice(counting.kind, after, until, sums, end is not None)


def _sums(found: Iterable[Row]) -> Counter[_Key]:
    """Rows of _COLUMNS by each of their values."""
    sums: Counter[_Key] = Counter()
    for account_id, day, kind, sender, tags, template, provider, recipients in found:
        values = [(Dimension.DOMAIN, sender.rpartition("@")[2].lower()), (Dimension.PROVIDER, provider)]
        values += [(Dimension.TEMPLATE, template)] if template else []
        values += [(Dimension.TAG, tag) for tag in set(_tags.decode(tags))]
        for dimension, value in values:
            sums[_Key(account_id, dimension.value, day, value, kind)] += recipients
    return sums


def _add(found: _Slice, tx: Tx) -> None:
    if counted_until(tx, found.kind) != found.after:
        return  # another node has added it
    if found.sums:
        _ADD.run(tx, [(*key, count) for key, count in sorted(found.sums.items())])
        for place in _CROWDED.run(tx, sorted({(key.account_id, key.dimension, key.day) for key in found.sums})):
            _reduce(tx, place)
    run(tx, SET_COUNTED, {"kind": found.kind, "id": found.until})


def _reduce(tx: Tx, place: Row) -> None:
    """Of one account, dimension and day: add the values with the fewest recipients to the others."""
    values = rows(tx, _VALUES, dict(zip(("account_id", "dimension", "day"), place, strict=True)))
    others: Counter[str] = Counter()
    for kind, recipients in _REMOVE.run(tx, [(*place, value) for (value,) in values[VALUES_KEPT:]]):
        others[kind] += recipients
    _ADD.run(tx, [(*place, OTHERS, kind, count) for kind, count in sorted(others.items())])


def _read(account_id: str, dimension: Dimension, since: int, tx: Tx) -> dict[str, Counter[str]]:
    bindings = {"account_id": account_id, "dimension": dimension.value, "since": since, "most": TAIL_ROWS}
    found: dict[str, Counter[str]] = {}
    for value, kind, count in rows(tx, _READ, bindings):
        found.setdefault(value, Counter())[kind] += count
    for each in _BROKEN_DOWN:
        tail = tx.gather(each.tail, _COLUMNS, bindings | {"after": counted_until(tx, each.counting.kind)})
        for key, count in _sums(tail).items():
            if key.dimension == dimension and key.day >= since:
                found.setdefault(key.value, Counter())[key.kind] += count
    return found
