"""Statistics of recipients by the day, broken down by sending domain, tag, template and provider.

Providers, and their pairs with a sending domain, a template, a stream or a source address, also have delivery times and
the number of recipients deferred before their result. The default stream has no pairs: a read subtracts the other
streams from all mail. A source address is known only from an attempt: its `sent` recipients are those with a result.

The sums are computed in the background, as in `statistics.py`, with separate positions. The background reader sums new
rows, and the writer adds the sums only if the position has not moved. Each dimension has a bounded number of values per
account and day: the reader's thread merges the values with the fewest recipients into one with an empty name, so the
writer and the event loop never handle more.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from heapq import nsmallest
from typing import NamedTuple, TypeVar

from appliance.environment import identifier_time
from appliance.model.dashboard import CountsByValue, Deliverability, Dimension, Pairing
from appliance.model.numbers import NUMBERS, RETURNED
from appliance.model.streams import TRANSACTIONAL
from appliance.store.engine import NEWEST, Bulk, Row, StorePart, Tx, rows, run
from appliance.store.message_records import LAST_SOURCE, readable_tags
from appliance.store.statistics import (
    COUNTED_EVENT,
    COUNTINGS,
    EVENT_LAG,
    FINAL_EVENT,
    KIND,
    MESSAGE_LAG,
    PROVIDER,
    SET_COUNTED,
    Counting,
    counted_until,
)
from appliance.telemetry.metrics import RECIPIENT_NUMBERS
from appliance.times import DAY, SECOND

ROWS_SUMMED = 250  # in one transaction, each with up to 20 tags
TAIL_SLICES = 20  # slices of uncounted rows that a read adds up
VALUES_KEPT = 100  # of an account, a day and a dimension
VALUES_MOST = 2 * VALUES_KEPT  # more are reduced to VALUES_KEPT
VALUES_READ = 1_000  # the largest over all days
VALUES_TOLD = 50
OTHERS = ""
LAST = "\U0010ffff"  # after all values

Place = TypeVar("Place", str, int)
ByValue = dict[str, dict[str, int]]  # recipients by outcome

# Seconds within which deliveries are counted together, as `within_1`, `within_2`, …; the others are `slower`.
TIME_STEPS = (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)
SLOWER = "slower"
DEFERRED = "deferred"  # tried more than once before the result


def time_kind(seconds: int) -> str:
    return f"within_{seconds}"


_STEPS = " ".join(
    f"WHEN e.created_at - m.created_at <= {seconds * SECOND} THEN '{time_kind(seconds)}'" for seconds in TIME_STEPS
)
_TIME = f"CASE WHEN e.type <> 'email.delivered' THEN '' {_STEPS} ELSE '{SLOWER}' END"
_DEFERRED = f"CASE WHEN {FINAL_EVENT} AND r.failure IS NULL AND r.attempt_count > 1 THEN '{DEFERRED}' ELSE '' END"


def _domain_pair(text: str) -> str:
    """Split `ADDRESS PROVIDER` into the address's domain and the provider; no domain has a space."""
    domain, _, provider = text.rpartition("@")[2].partition(" ")
    return f"{domain.lower()} {provider}"


# SQL for the text of each dimension (NULL: none) and for its values.
_TEXTS: dict[Dimension | Pairing, str] = {
    Dimension.DOMAIN: "m.envelope_from",
    Dimension.TAG: "m.tags",
    Dimension.TEMPLATE: "m.template_alias",
    Dimension.PROVIDER: PROVIDER,
    Pairing.DOMAIN: f"m.envelope_from || ' ' || {PROVIDER}",
    Pairing.TEMPLATE: f"m.template_alias || ' ' || {PROVIDER}",
    Pairing.STREAM: f"CASE WHEN m.stream <> '{TRANSACTIONAL.name}' THEN m.stream || ' ' || {PROVIDER} END",
    Pairing.SOURCE: f"{LAST_SOURCE.format(recipient='r.id')} || ' ' || {PROVIDER}",
}
_WITH_TIMES = {Dimension.PROVIDER, *Pairing}
# Of other dimensions the text is the value.
_VALUES_OF: dict[Dimension | Pairing, Callable[[str], Iterable[str]]] = {
    Dimension.DOMAIN: lambda text: (text.rpartition("@")[2].lower(),),
    Dimension.TAG: readable_tags,
    Pairing.DOMAIN: lambda text: (_domain_pair(text),),
}
_COLUMNS = ", ".join(("account_id", "day", "kind", "recipients", "retried", "took", *_TEXTS))
_PLACES = ", ".join(str(place) for place in range(5, 7 + len(_TEXTS)))  # of the last ones
_SENT = f"""SELECT m.account_id AS account_id, m.created_at / {DAY} AS day, 'sent' AS kind, count(*) AS recipients,
        '' AS retried, '' AS took, {{texts}}
    FROM recipients r CROSS JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
    LEFT JOIN destinations d ON d.domain = r.domain
    WHERE r.message_id > :after AND r.message_id <= :until AND m.source <> 'test' AND m.envelope_from <> ''
        {{condition}}
    GROUP BY 1, 2, {_PLACES}"""
_FINAL = f"""SELECT e.account_id AS account_id, e.created_at / {DAY} AS day, {KIND} AS kind, count(*) AS recipients,
        {_DEFERRED} AS retried, {_TIME} AS took, {{texts}}
    FROM events e CROSS JOIN messages m ON m.account_id = e.account_id AND m.id = e.message_id
    CROSS JOIN recipients r ON r.message_id = e.message_id AND r.id = e.recipient_id
    LEFT JOIN destinations d ON d.domain = r.domain
    WHERE e.id > :after AND e.id <= :until AND m.source <> 'test' AND {COUNTED_EVENT} {{condition}}
    GROUP BY 1, 2, 3, {_PLACES}"""
_ADD = Bulk("""INSERT INTO daily_breakdown (account_id, dimension, day, value, kind, recipients)
    VALUES {(?, ?, ?i, ?, ?, ?i)} ON CONFLICT (account_id, dimension, day, value, kind)
    DO UPDATE SET recipients = daily_breakdown.recipients + excluded.recipients""")
_CROWDED = Bulk(f"""SELECT account_id, dimension, day FROM daily_breakdown
    WHERE (account_id, dimension, day) IN (VALUES {{(?, ?, ?i)}})
    GROUP BY account_id, dimension, day HAVING count(DISTINCT value) > {VALUES_MOST}""")
_VALUES = """SELECT value FROM daily_breakdown
    WHERE account_id = :account_id AND dimension = :dimension AND day = :day AND value <> ''
    GROUP BY value ORDER BY sum(recipients) DESC, value"""
_REMOVE = Bulk("""DELETE FROM daily_breakdown WHERE (account_id, dimension, day, value) IN (VALUES {(?, ?, ?i, ?)})
    RETURNING kind, recipients""")
_READ = f"""WITH sums AS (SELECT value, kind, sum(recipients) AS recipients FROM daily_breakdown
        WHERE account_id = :account_id AND dimension = :dimension AND day >= :since
            AND kind IN ({", ".join(f"'{kind}'" for kind in NUMBERS)}) GROUP BY value, kind),
    largest AS (SELECT value FROM sums WHERE value <> '' GROUP BY value
        ORDER BY max(recipients) DESC, value LIMIT :most)
    SELECT coalesce(l.value, '') AS value, s.kind AS kind, sum(s.recipients) AS recipients
    FROM sums s LEFT JOIN largest l ON l.value = s.value GROUP BY 1, 2"""
_SUMS = """SELECT {by} AS place, kind, sum(recipients) AS recipients FROM daily_breakdown
    WHERE account_id = :account_id AND dimension = :dimension AND day >= :since AND value >= :first AND value <= :last
    GROUP BY {by}, kind"""


class _Place(NamedTuple):
    account_id: str
    dimension: str
    day: int


class _BrokenDown(NamedTuple):
    """SQL that counts one kind of row between two positions, for all accounts or for one."""

    counting: Counting
    rows: str
    of_account: str  # added to it
    without: Pairing | None = None  # what these rows do not have

    def read(
        self, tx: Tx, after: str, until: str, account_id: str = "", dimension: Dimension | Pairing | None = None
    ) -> "Sums":
        """The rows by place and value, for one dimension alone if it is named."""
        selected = {
            item: text if dimension in (None, item) and item is not self.without else "NULL"
            for item, text in _TEXTS.items()
        }
        texts = ", ".join(f"{text} AS {item}" for item, text in selected.items())
        sql = self.rows.format(texts=texts, condition=self.of_account if account_id else "")
        return _sums(tx.gather(sql, _COLUMNS, {"after": after, "until": until, "account_id": account_id}))


Sums = dict[_Place, ByValue]
_BROKEN_DOWN = (
    _BrokenDown(
        Counting("sent by value", "msg", MESSAGE_LAG, "recipients", "message_id"),
        _SENT,
        "AND r.account_id = :account_id",
        without=Pairing.SOURCE,
    ),
    _BrokenDown(Counting("final by value", "evt", EVENT_LAG, "events", "id"), _FINAL, "AND e.account_id = :account_id"),
)


class _Slice(NamedTuple):
    kind: str
    after: str
    until: str
    more: bool
    sums: Sums


class Breakdown(StorePart):
    rows_summed: int = ROWS_SUMMED

    async def count(self) -> bool:
        now, more = self.engine.slowest_clock(self.env.now()), False
        for item in _BROKEN_DOWN:
            results = await self.engine.scan(partial(_read_slice, item, now, self.rows_summed))
            if results is not None:
                if await self.engine.write(partial(_add, results), large=True):
                    _measure(results.sums)
                more = more or results.more
        return more

    async def of(self, account_id: str, dimension: Dimension, since: int) -> CountsByValue:
        work = partial(_read, account_id, dimension, since // DAY, self.rows_summed)
        return await self.engine.scan(work, account_id)

    async def by_provider(
        self, account_id: str, since: int, provider: str | None = None, pair: tuple[Pairing, str] | None = None
    ) -> Deliverability:
        """Count by provider, and by day at one provider or all; with `pair` only the mail that has this value."""
        work = partial(_read_providers, account_id, since // DAY, self.rows_summed, provider, pair)
        return await self.engine.scan(work, account_id)


def counted_all_before(tx: Tx, until: int) -> bool:
    """Whether all rows written before a time are counted, here and in `statistics.py`, so that they may be deleted."""
    return all(
        item.end_of_slice(tx, until, 0) is None for item in (*COUNTINGS, *(one.counting for one in _BROKEN_DOWN))
    )


def _read_slice(breakdown: _BrokenDown, now: int, most: int, tx: Tx) -> _Slice | None:
    """None if nothing is new; then nothing is written."""
    counting = breakdown.counting
    bounds = counting.next_slice(tx, now, most)
    if bounds is None or counting.end_of_slice(tx, now - counting.lag, 0) is None:
        return None
    return _Slice(counting.kind, *bounds, breakdown.read(tx, bounds.after, bounds.until))


def _sums(selected: Iterable[Row]) -> Sums:
    sums: Sums = {}
    for account_id, day, kind, recipients, retried, took, *texts in selected:
        for dimension, text in zip(_TEXTS, texts, strict=True):
            if text is not None:
                by_value = sums.setdefault(_Place(account_id, dimension.value, day), {})
                kinds = [kind, retried, took] if dimension in _WITH_TIMES else [kind]
                if dimension is Pairing.SOURCE and kind not in RETURNED:
                    kinds.append("sent")
                for value in _VALUES_OF[dimension](text) if dimension in _VALUES_OF else (text,):
                    for counted in filter(None, kinds):
                        _count(by_value, value, counted, recipients)
    return {place: largest(by_value, VALUES_KEPT) for place, by_value in sums.items()}


def _count(sums: dict[Place, dict[str, int]], place: Place, kind: str, recipients: int) -> None:
    counts = sums.setdefault(place, {})
    counts[kind] = counts.get(kind, 0) + int(recipients)


def largest(by_value: ByValue, most: int) -> ByValue:
    """The values with the most recipients, largest first, then the sum of all others. Pure."""
    sizes = [(-max(counts.values()), value) for value, counts in by_value.items() if value != OTHERS]
    results = {value: by_value[value] for _, value in nsmallest(most, sizes)}
    others: ByValue = {}
    for value in by_value.keys() - results.keys():
        for kind, recipients in by_value[value].items():
            _count(others, OTHERS, kind, recipients)
    return results | others


def _flat(sums: Sums) -> Iterator[tuple[_Place, str, str, int]]:
    """Each place, value and kind with its recipients."""
    for place, by_value in sums.items():
        for value, counts in by_value.items():
            for kind, recipients in counts.items():
                yield place, value, kind, recipients


def _measure(sums: Sums) -> None:
    for place, _, kind, recipients in _flat(sums):
        if place.dimension == Dimension.DOMAIN:
            RECIPIENT_NUMBERS.add(kind, recipients)


def _add(counted: _Slice, tx: Tx) -> bool:
    if counted_until(tx, counted.kind) != counted.after:
        return False  # another node has added it
    if counted.sums:
        _ADD.run(tx, sorted((*place, *values) for place, *values in _flat(counted.sums)))
        for place in _CROWDED.run(tx, sorted(counted.sums)):
            _reduce(tx, place)
    run(tx, SET_COUNTED, {"kind": counted.kind, "id": counted.until})
    return True


def _reduce(tx: Tx, place: Row) -> None:
    values = rows(tx, _VALUES, dict(zip(("account_id", "dimension", "day"), place, strict=True)))
    others: Counter[str] = Counter()
    for kind, recipients in _REMOVE.run(tx, [(*place, value) for (value,) in values[VALUES_KEPT:]]):
        others[kind] += recipients
    _ADD.run(tx, [(*place, OTHERS, kind, count) for kind, count in sorted(others.items())])


def _read(account_id: str, dimension: Dimension, since: int, most: int, tx: Tx) -> CountsByValue:
    """Read the counts, and add the oldest uncounted rows slice by slice."""
    bindings = {"account_id": account_id, "dimension": dimension.value, "since": since, "most": VALUES_READ}
    results: ByValue = {}
    for counted in tx.gather(_READ, "value, kind, recipients", bindings):
        _count(results, *counted)
    tail, until = _tail(tx, account_id, dimension, since, most)
    for _, value, kind, count in tail:
        if kind in NUMBERS:
            _count(results, value, kind, count)
    return CountsByValue(largest(results, VALUES_TOLD), until)


def _tail(
    tx: Tx, account_id: str, dimension: Dimension | Pairing, since: int, most: int
) -> tuple[list[tuple[int, str, str, int]], int | None]:
    """Sum the oldest uncounted rows (day, value, kind, recipients); return where they end, None at the present."""
    results, until = list[tuple[int, str, str, int]](), list[int]()
    for item in _BROKEN_DOWN:
        after = counted_until(tx, item.counting.kind)
        for _ in range(TAIL_SLICES):
            end = item.counting.end_of_slice(tx, None, most, after)
            counted = _flat(item.read(tx, after, end or NEWEST, account_id, dimension))
            results += [(place.day, value, kind, count) for place, value, kind, count in counted if place.day >= since]
            if end is None:
                break
            after = end
        else:
            until.append(identifier_time(after))
    return results, min(until, default=None)


def _read_providers(
    account_id: str, since: int, most: int, provider: str | None, pair: tuple[Pairing, str] | None, tx: Tx
) -> Deliverability:
    sources = tuple(sorted(_paired(Pairing.SOURCE, account_id, since, most, tx)))
    if pair != (Pairing.STREAM, TRANSACTIONAL.name):
        return _by_provider(account_id, since, most, provider, pair, tx)._replace(sources=sources)
    by_provider, by_day, until, _ = _by_provider(account_id, since, most, provider, None, tx)
    for name in _paired(Pairing.STREAM, account_id, since, most, tx):
        other = _by_provider(account_id, since, most, provider, (Pairing.STREAM, name), tx)
        by_provider, by_day = _less(by_provider, other.by_provider), _less(by_day, other.by_day)
    by_provider = {name: counts for name, counts in by_provider.items() if any(counts.values())}
    return Deliverability(by_provider, by_day, until, sources)


def _paired(pairing: Pairing, account_id: str, since: int, most: int, tx: Tx) -> set[str]:
    """The streams or source addresses that are counted together with providers."""
    bindings = {"account_id": account_id, "dimension": pairing.value, "since": since}
    stored = rows(tx, _SUMS.format(by="value"), bindings | {"first": "", "last": LAST})
    tail, _ = _tail(tx, account_id, pairing, since, most)
    values = {value for value, *_ in stored} | {value for _, value, *_ in tail}
    return {value.partition(" ")[0] for value in values - {OTHERS}}


def _less(
    of_all: Mapping[Place, Mapping[str, int]], of_stream: Mapping[Place, Mapping[str, int]]
) -> Mapping[Place, Mapping[str, int]]:
    return {
        place: {kind: count - of_stream.get(place, {}).get(kind, 0) for kind, count in counts.items()}
        for place, counts in of_all.items()
    }


def _by_provider(
    account_id: str, since: int, most: int, provider: str | None, pair: tuple[Pairing, str] | None, tx: Tx
) -> Deliverability:
    dimension, prefix = (Dimension.PROVIDER, "") if pair is None else (pair[0], f"{pair[1]} ")
    every = prefix, prefix + LAST
    chosen = every if provider is None else (prefix + provider, prefix + provider)
    bindings = {"account_id": account_id, "dimension": dimension.value, "since": since}
    by_value: ByValue = {}
    by_day: dict[int, dict[str, int]] = {}
    for first, last, by, sums in ((*every, "value", by_value), (*chosen, "day", by_day)):
        for counted in rows(tx, _SUMS.format(by=by), bindings | {"first": first, "last": last}):
            _count(sums, *counted)
    tail, until = _tail(tx, account_id, dimension, since, most)
    for day, value, kind, count in tail:
        if every[0] <= value <= every[1]:
            _count(by_value, value, kind, count)
        if chosen[0] <= value <= chosen[1]:
            _count(by_day, day, kind, count)
    return Deliverability({value.removeprefix(prefix): counts for value, counts in by_value.items()}, by_day, until)
