"""The request log: submissions of the last 7 days, accepted or refused, as compressed pages of one account each.

A row holds up to PAGE_REQUESTS requests. So writing, indexing and deleting costs a fraction of a row per request, which
keeps the log under 3 % of the accept throughput. `request_sizes` has the bytes of each account: retention deletes the
oldest pages of an account above ACCOUNT_BYTES. Above LOG_BYTES in total, it deletes the oldest pages of the account
with the largest log, so that no account pushes out the requests of a smaller one.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from appliance.concurrency.fair_share import SERVER_WORK
from appliance.environment import identifier_from, identifier_time
from appliance.errors import invalid
from appliance.model.dashboard import LoggedRequest, RequestFilter
from appliance.store.engine import NEWEST, Bulk, Row, Slice, StorePart, Tx, rows, run, timed
from appliance.times import DAY, HOUR

REQUESTS_KEPT = 7 * DAY
PAGE_REQUESTS = 64  # in one row
ACCOUNT_BYTES = 128 * 1024 * 1024  # of one account's pages, compressed: about 500,000 requests
LOG_BYTES = 1024 * 1024 * 1024  # of all pages
ROW_BYTES = 200  # overhead of a page
BYTES_SCANNED = 2 * 1024 * 1024  # uncompressed, per response: about 40 ms
READING_COST = 400  # of a page, in such bytes
PAGES_READ = 32  # at once
PAGES_PER_BUDGET = 4  # a page of the log takes about four of the database
LONGEST_REQUEST = HOUR  # between a request's id and its page: slow bodies, and clocks of nodes

_ADD = Bulk("INSERT INTO request_pages (id, account_id, size, data) VALUES {(?, ?, ?i, ?b)}")
_COUNT = Bulk("""INSERT INTO request_sizes (account_id, bytes) VALUES {(?, ?i)}
    ON CONFLICT (account_id) DO UPDATE SET bytes = request_sizes.bytes + excluded.bytes""")
_PAGES = """SELECT id, account_id, data FROM request_pages
    WHERE {whose} id <= :from AND id >= :first ORDER BY id DESC LIMIT :most"""
# A deleted account has no users.
_TOO_MUCH = """SELECT EXISTS (SELECT 1 FROM request_pages WHERE id < :before),
    coalesce(
        (SELECT account_id FROM request_sizes s
            WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.account_id = s.account_id) LIMIT 1),
        (SELECT account_id FROM request_sizes
            WHERE bytes > :account_bytes OR (SELECT sum(bytes) FROM request_sizes) > :log_bytes
            ORDER BY bytes DESC LIMIT 1))"""
_DELETE = """DELETE FROM request_pages WHERE id IN
    (SELECT id FROM request_pages WHERE {which} ORDER BY id LIMIT :most) RETURNING account_id, size"""
_DELETE_OLD, _DELETE_OF = (_DELETE.format(which=which) for which in ("id < :before", "account_id = :account_id"))
_DROP_EMPTY = "DELETE FROM request_sizes WHERE bytes <= 0"

_PREFIX = "rqp"
_CURSOR = re.compile(rf"({_PREFIX}_[0-9a-f]{{32}})\.([0-9]{{1,4}})")
_REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")
Matching = Callable[[Sequence[str]], Iterator[tuple[int, LoggedRequest]]]
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(LoggedRequest).decode


def packed(requests: Sequence[LoggedRequest]) -> bytes:
    """The data of a page: one line of JSON per request, oldest first."""
    return zlib.compress(b"\n".join(map(_encode, requests)), 1)


class RequestPages(StorePart):
    account_bytes, log_bytes, scanned = ACCOUNT_BYTES, LOG_BYTES, BYTES_SCANNED

    async def add(self, pages: Sequence[tuple[str, bytes]]) -> None:
        """Store pages, in order per account, outside of the commits that senders wait for."""
        lines, sizes, last = [], Counter[str](), None
        for account_id, data in pages:
            last = self.env.identifier_after(_PREFIX, last)
            lines.append((last, account_id, len(data) + ROW_BYTES, data))
            sizes[account_id] += len(data) + ROW_BYTES

        def write(tx: Tx) -> None:
            _ADD.run(tx, lines)
            _COUNT.run(tx, sorted(sizes.items()))

        await self.engine.write(write, bulk=True, locks=True)

    async def search(
        self, account_id: str | None, filters: RequestFilter, most: int, before: str | None = None
    ) -> tuple[list[tuple[str, LoggedRequest]], str | None]:
        """Return requests with their accounts, newest first, and the cursor to continue before, if any.

        Reads about BYTES_SCANNED of requests, so a page may be incomplete. Without an account: of all accounts.
        """
        cursor, first = (NEWEST, 0), identifier_from(_PREFIX, 0)
        if before is not None:
            if (match := _CURSOR.fullmatch(before)) is None:
                raise invalid("before", "must be `next` of the previous page")
            cursor = match[1], int(match[2])
        if _REQUEST_ID.fullmatch(filters.text):
            at = identifier_time(filters.text)
            first = identifier_from(_PREFIX, max(0, at - LONGEST_REQUEST))
            cursor = min(cursor, (identifier_from(_PREFIX, at + LONGEST_REQUEST), 0))
        query = _PAGES.format(whose="" if account_id is None else "account_id = :account_id AND")
        bindings = {"account_id": account_id, "first": first, "most": PAGES_READ}
        matching, scanned = _matching(filters), self.scanned

        def read(tx: Tx) -> tuple[list[tuple[str, LoggedRequest]], str | None]:
            return _search(lambda at: rows(tx, query, bindings | {"from": at}), matching, most, scanned, *cursor)

        return await self.engine.scan(read, account_id or SERVER_WORK)

    async def forget(self, before: int, budget: int) -> Slice:
        """Delete some pages: old ones, pages of a deleted account, or pages beyond the limits."""
        bindings = {
            "before": identifier_from(_PREFIX, before),
            "account_bytes": self.account_bytes,
            "log_bytes": self.log_bytes,
            "most": max(1, budget // PAGES_PER_BUDGET),
        }
        ((is_old, largest),) = await self.engine.rows(_TOO_MUCH, bindings)
        if not is_old and largest is None:
            return Slice(0, 0.0, more=False)
        statement = _DELETE_OLD if is_old else _DELETE_OF

        def delete(tx: Tx) -> int:
            freed, pages = Counter[str](), rows(tx, statement, {**bindings, "account_id": largest})
            for account_id, size in pages:
                freed[account_id] -= size
            if freed:
                _COUNT.run(tx, sorted(freed.items()))
                run(tx, _DROP_EMPTY, {})
            return len(pages)

        deleted, seconds = await self.engine.write(timed(delete), large=True)
        return Slice(deleted, seconds, more=deleted > 0)


def _search(
    read: Callable[[str], list[Row]], matching: Matching, most: int, scanned: int, page: str, below: int
) -> tuple[list[tuple[str, LoggedRequest]], str | None]:
    """Search from a page on; `below` is the first of its lines that was read before."""
    results: list[tuple[str, LoggedRequest]] = []
    cursors: list[str] = []  # of the results
    while True:
        pages = read(page)
        for page_id, owner, data in pages:
            text = zlib.decompress(data)
            lines = text.decode().split("\n")
            end = below if page_id == page else len(lines)
            for number, request in matching(lines[:end]):
                if len(results) == most:
                    return results, cursors[-1]
                results.append((owner, request))
                cursors.append(f"{page_id}.{number}")
            scanned -= len(text) + READING_COST
            page, below = page_id, 0
            if scanned <= 0:
                return results, f"{page_id}.0"
        if len(pages) < PAGES_READ:
            return results, None


def _matching(filters: RequestFilter) -> Matching:
    """Return a function that yields the requests that match, newest first, with their numbers.

    Text is searched in the encoded line; as an expression, because `in` takes quadratic time for some texts.
    """
    has_text = re.compile(re.escape(_encode(filters.text).decode()[1:-1])).search

    def matching(lines: Sequence[str]) -> Iterator[tuple[int, LoggedRequest]]:
        for number in range(len(lines) - 1, -1, -1):
            line = lines[number]
            if filters.text and has_text(line.lower()) is None:
                continue
            request = _decode(line)
            if filters.status is not None and request.status != filters.status:
                continue
            if filters.accepted is not None and filters.accepted != (request.status < 300):
                continue
            if filters.key is None or filters.key == request.key:
                yield number, request

    return matching
