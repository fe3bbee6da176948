"""The request log in the store: pages are searched newest first, and bounded by age and bytes."""

import time

import pytest

from appliance.errors import Refused
from appliance.model.accounts import Account
from appliance.model.dashboard import LoggedRequest, RequestFilter
from appliance.store import Store
from appliance.store.request_log import packed
from appliance.times import HOUR, SECOND
from tests.store.samples import HASH, Clock

EVERY = RequestFilter()


def logged(number: int, at: int = 0, **fields: object) -> LoggedRequest:
    known = {"request_id": f"req_{number:032x}", "at": at, "source": "api", "route": "POST /emails", "key": "key_1"}
    known |= {"client": "192.0.2.1", "status": 202, "code": None, "error": None, "message_id": f"msg_{number}"}
    return LoggedRequest(**{**known, "size": 10, "body": f'{{"to":"Ada{number}@example.net"}}', **fields})  # type: ignore[arg-type]  # by name


async def add(store: Store, account_id: str, *requests: LoggedRequest) -> None:
    await store.request_pages.add([(account_id, packed(requests))])


async def numbers(store: Store, filters: RequestFilter = EVERY, account_id: str | None = "acc_1") -> list[int]:
    results, following = await store.request_pages.search(account_id, filters, 100)
    assert following is None
    return [int(request.request_id[4:], 16) for _, request in results]


async def test_requests_are_listed_newest_first_in_pages_of_any_size(store: Store, clock: Clock) -> None:
    for first in (1, 4, 7):
        await add(store, "acc_1", *map(logged, range(first, first + 3)))
        clock.now += SECOND
    await add(store, "acc_2", logged(100))
    assert await numbers(store) == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert await numbers(store, account_id=None) == [100, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    seen: list[str] = []
    cursor = None
    while True:
        results, cursor = await store.request_pages.search("acc_1", EVERY, 2, cursor)
        seen += [request.request_id for _, request in results]
        if cursor is None:
            break
    assert [int(request_id[4:], 16) for request_id in seen] == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    with pytest.raises(Refused, match="before: must be `next` of the previous page"):
        await store.request_pages.search("acc_1", EVERY, 2, "req_1")


async def test_filters_are_combined(store: Store) -> None:
    refused = logged(2, status=403, code="forbidden", error='from: "x" is not yours', message_id=None, key="smtp_ä")
    await add(store, "acc_1", logged(1), refused, logged(3, status=250, key="smtp_ä"))
    assert await numbers(store, RequestFilter(status=403)) == [2]
    assert await numbers(store, RequestFilter(accepted=True)) == [3, 1]
    assert await numbers(store, RequestFilter(accepted=False)) == [2]
    assert await numbers(store, RequestFilter(key="smtp_ä")) == [3, 2]
    assert await numbers(store, RequestFilter(key="smtp_ä", accepted=True)) == [3]
    assert await numbers(store, RequestFilter(text="ada3@")) == [3]
    assert await numbers(store, RequestFilter(text='"x" is')) == [2]
    assert await numbers(store, RequestFilter(text="smtp_ä")) == [3, 2]
    assert await numbers(store, RequestFilter(text="nowhere")) == []


async def test_a_request_id_is_found_without_reading_the_whole_log(store: Store, clock: Clock) -> None:
    request_id = store.request_pages.env.identifier("req")
    await add(store, "acc_1", logged(1, request_id=request_id))
    clock.now += 3 * HOUR
    await add(store, "acc_1", logged(2, body=f"after {request_id}"))
    results, following = await store.request_pages.search("acc_1", RequestFilter(text=request_id), 10)
    assert ([request.message_id for _, request in results], following) == (["msg_1"], None)


async def test_a_search_reads_a_bounded_number_of_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store.request_pages), "scanned", 3_000)  # four to five pages
    for number in range(1, 13):
        await add(store, "acc_1", logged(number))
    counts, cursor = [], None
    while True:
        results, cursor = await store.request_pages.search("acc_1", RequestFilter(text="ada1@"), 10, cursor)
        counts.append(len(results))
        if cursor is None:
            break
    assert counts == [0, 0, 1]


@pytest.mark.parametrize(
    ("subject", "text"), [("".join(map(str, range(600))), "nowhere"), ("a" * 2_000, "a" * 100 + "b" + "a" * 99)]
)
async def test_no_text_holds_the_reader(store: Store, subject: str, text: str) -> None:
    """Whatever the log has, and whatever is looked for, one answer takes a short time and leads to the next."""
    for _ in range(40):
        await add(store, "acc_1", *(logged(number, body=subject) for number in range(64)))

    taken = []
    for _ in range(3):
        began = time.thread_time()
        _, following = await store.request_pages.search("acc_1", RequestFilter(text=text), 50)
        taken.append(time.thread_time() - began)
        assert following is not None
    assert min(taken) < 0.25


async def test_old_pages_are_deleted(store: Store, account: Account, clock: Clock) -> None:
    await add(store, account.id, logged(1))
    clock.now += 10 * SECOND
    middle = store.request_pages.env.now() - 5 * SECOND
    await add(store, account.id, logged(2))
    assert (await store.request_pages.forget(middle, 100)).deleted == 1
    assert await numbers(store, account_id=account.id) == [2]
    assert (await store.request_pages.forget(middle, 100)).deleted == 0


async def test_the_account_with_the_largest_log_loses_its_oldest_pages(
    store: Store, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One account cannot push out the requests of another."""
    other = await store.accounts.create("other", "other@example.org", HASH)
    await add(store, other.id, logged(100))
    for number in range(1, 6):
        await add(store, account.id, logged(number))
    one = 200 + len(packed([logged(1)]))
    monkeypatch.setattr(type(store.request_pages), "account_bytes", 4 * one + 20)
    assert await _forget_all(store) == 1
    assert await numbers(store, account_id=account.id) == [5, 4, 3, 2]
    monkeypatch.setattr(type(store.request_pages), "log_bytes", 3 * one + 50)
    assert await _forget_all(store) == 2
    assert await numbers(store, account_id=account.id) == [5, 4]
    assert await numbers(store, account_id=other.id) == [100]
    assert (await store.request_pages.forget(store.request_pages.env.now() + SECOND, 1_000)).deleted == 3
    assert await store.request_pages.engine.rows("SELECT count(*) FROM request_sizes", {}) == [(0,)]


async def test_the_log_of_a_deleted_account_is_deleted(store: Store, account: Account) -> None:
    gone = await store.accounts.create("gone", "gone@example.org", HASH)
    await store.accounts.delete(gone.id)
    for number in range(1, 6):
        await add(store, gone.id, logged(number))
        await add(store, account.id, logged(number + 10))
    assert (await store.request_pages.forget(0, 8)).deleted == 2
    assert await _forget_all(store) == 3
    assert await numbers(store, account_id=None) == [15, 14, 13, 12, 11]
    sizes = await store.request_pages.engine.rows("SELECT account_id FROM request_sizes", {})
    assert sizes == [(account.id,)]


async def _forget_all(store: Store) -> int:
    deleted = 0
    while (part := await store.request_pages.forget(0, 4)).more:
        deleted += part.deleted
    return deleted
