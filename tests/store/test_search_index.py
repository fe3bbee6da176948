"""Searching by words: the index and a plain reading of all messages find the same, whatever has happened since."""

from itertools import count, islice, pairwise
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from appliance.environment import Environment, identifier_time
from appliance.errors import Refused
from appliance.message.labels import read_metadata
from appliance.message.search_words import QUERY_LENGTH, folded, holds, query_words, terms
from appliance.model.accounts import Account
from appliance.model.dashboard import MailFilter
from appliance.model.mail import MessageStatus, NewMessage, RecipientOutcome, RecipientStatus
from appliance.store import Store
from appliance.store.engine import NEWEST, START, Tx
from appliance.store.message_records import SEARCHED_LENGTH, MessageTexts, _RecipientTexts, read_texts
from appliance.store.search_index import (
    CHANGES_NOTED_AFTER,
    CHORE_RENEWED_EVERY,
    ID,
    INDEXED_AFTER,
    _in_order,
    blocks_before,
    look_up,
)
from tests.store.samples import HASH, Clock, Database, Messages, outcome, record, written_statements

SUBJECTS = (
    "Your invoice INV-2024-001",
    "Willkommen, Jürgen!",
    "Ein Gruß aus Köln",
    "領収書のお知らせ",
    "Invoices (old)",
    "x",
)
PEOPLE = ("ada@example.net", "ada.lovelace@mail.example.net", "Bob+news@EXAMPLE.org", "o'neil@example.com")
QUERIES = """invoice;inv-2024;INV;ada;lovelace@mail;example.net;@example.org;bob+news;お知らせ;gruss;köln;KÖLN;
jürgen ada;unknown;5.1.1;550 user;one;req_;voice;ample;net ada""".replace("\n", "").split(";")


def small(store: Store) -> Store:
    store.search_index = replace(store.search_index, block_messages=4, read_together=3, written_together=7, share=1.0)
    store.mail_log = replace(store.mail_log, block=3, clock=lambda: 0.0)
    return store


def made(messages: Messages, number: int, *, to: tuple[str, ...] = (), account: Account | None = None) -> NewMessage:
    new = messages.new(*(to or (PEOPLE[number % len(PEOPLE)],)))
    subject = f"{SUBJECTS[number % len(SUBJECTS)]} {number}"
    return structs.replace(new, subject=subject, account_id=new.account_id if account is None else account.id)


async def index_all(store: Store) -> None:
    for _ in range(1_000):
        if not await store.search_index.index_some():
            return
    raise AssertionError("the indexer does not come to an end")


async def found(store: Store, account_id: str, wanted: MailFilter, most: int = 3) -> list[str]:
    ids: list[str] = []
    before = None
    while True:
        page = await store.mail_log.page(account_id, wanted, before, most)
        ids += [each.id for each in page.messages]
        before = page.next
        if before is None:
            return ids


async def plainly(store: Store, account_id: str, query: str) -> list[str]:
    words = query_words(query)
    ids = [
        each
        for (each,) in await store.engine.rows("SELECT id FROM messages WHERE account_id = :id", {"id": account_id})
    ]
    texts = await store.engine.scan(lambda tx: read_texts(tx, account_id, ids))
    return sorted((each.id for each in texts if each.has(words)), reverse=True)


class Reading:
    def __init__(self, tx: Tx) -> None:
        self._tx, self.count = tx, 0

    def __getattr__(self, name: str) -> Any:
        self.count += 1
        return getattr(self._tx, name)


async def count_of(store: Store, table: str) -> int:
    ((rows_there,),) = await store.engine.rows(f"SELECT count(*) FROM {table}", {})
    return int(rows_there)


async def test_the_index_equals_a_reading(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    store = small(store)
    other = await store.accounts.create("other", "other@example.org", HASH)
    for number in range(30):
        await store.messages.accept(made(messages, number, account=other if number % 5 == 0 else None))
    await record(store, clock, [RecipientStatus.BOUNCED, RecipientStatus.DELIVERED, RecipientStatus.DEFERRED] * 5)
    clock.now += INDEXED_AFTER
    await index_all(store)
    assert await count_of(store, "search_blocks") == 7  # 24 messages of the one, 6 of the other
    for number in range(30, 33):
        await store.messages.accept(made(messages, number))
    for query in QUERIES:
        for account_id in (account.id, other.id):
            expected = await plainly(store, account_id, query)
            assert await found(store, account_id, MailFilter(words=query_words(query))) == expected, query
            unindexed = replace(store.mail_log, uses_index=False)
            page = await unindexed.page(account_id, MailFilter(words=query_words(query)), None, 100)
            assert [each.id for each in page.messages] == expected, query
    hits = {query: len(await found(store, account.id, MailFilter(words=query_words(query)))) for query in QUERIES}
    assert min(hits[each] for each in ("invoice", "lovelace@mail", "お知らせ", "gruss", "unknown", "one", "req_")) > 0
    assert hits["voice"] == hits["ample"] == 0


async def test_what_is_not_taken_is_not_read(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    store = small(store)
    for number in range(40):
        await store.messages.accept(made(messages, number))
    clock.now += INDEXED_AFTER
    await index_all(store)

    def newest(tx: Tx) -> tuple[list[str], list[int]]:
        reading, seen = Reading(tx), list[int]()
        found = look_up(cast("Tx", reading), blocks_before(tx, account.id, NEWEST, START, 100), ["example"])
        ids = []
        for each in islice(found, 5):
            ids.append(each)
            seen.append(reading.count)
        return ids, seen

    ids, seen = await store.engine.scan(newest)
    assert ids == (await plainly(store, account.id, "example"))[:5]
    assert seen == [2, 2, 2, 2, 3]  # the word in all blocks, the newest block, and the one before it


async def test_a_reply_that_comes_after_the_indexing_is_found(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    store = small(store)
    for number in range(4):
        await store.messages.accept(made(messages, number))
    await record(store, clock, [RecipientStatus.DEFERRED] * 4)
    clock.now += INDEXED_AFTER
    await index_all(store)
    later, unknown = MailFilter(words=("later",)), MailFilter(words=("unknown",))
    assert (len(await found(store, account.id, later)), len(await found(store, account.id, unknown))) == (4, 0)
    clock.now += 400 * 1_000_000
    await record(store, clock, [RecipientStatus.BOUNCED] * 2)
    for _ in range(2):
        assert (len(await found(store, account.id, later)), len(await found(store, account.id, unknown))) == (2, 2)
        bounced = MailFilter(outcome=RecipientOutcome.BOUNCED)
        assert len(await found(store, account.id, bounced)) == 2
        await index_all(store)
        assert await count_of(store, "search_changes") == 0


async def test_a_backlog_delivered_late_is_not_read_by_the_writer(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    """Every message of a backlog changes after it was indexed; new mail waited for the writer, which read them."""
    store.search_index = replace(store.search_index, block_messages=60, share=1.0)
    for number in range(60):
        await store.messages.accept(made(messages, number))
    clock.now += INDEXED_AFTER
    await index_all(store)
    await record(store, clock, [RecipientStatus.DELIVERED] * 60)
    assert await count_of(store, "search_changes") == 60
    with written_statements(store) as statements:
        assert await store.search_index.index_some()
    assert await count_of(store, "search_changes") == 0
    assert [statement.split()[0] for statement in statements] == ["SELECT", "INSERT", "DELETE"]
    assert not [statement for statement in statements if "messages" in statement or "recipients" in statement]
    delivered = MailFilter(outcome=RecipientOutcome.DELIVERED)
    assert len(await found(store, account.id, delivered)) == 60


async def test_what_changes_soon_is_not_noted(store: Store, messages: Messages, clock: Clock) -> None:
    await store.messages.accept(messages.new("b@example.net"))
    await record(store, clock, [RecipientStatus.DELIVERED])
    assert await count_of(store, "search_changes") == 0
    await store.messages.accept(messages.new("b@example.net"))
    clock.now += CHANGES_NOTED_AFTER
    await record(store, clock, [RecipientStatus.DELIVERED])
    assert await count_of(store, "search_changes") == 1


@pytest.mark.parametrize("indexed", [False, True])
async def test_outcomes_differ(store: Store, messages: Messages, account: Account, clock: Clock, indexed: bool) -> None:
    store = small(store)
    await store.suppressions.add(account.id, "gone@example.net", "by hand")
    ids = {}
    for name in ("suppressed", "delivered", "bounced", "deferred", "failed", "cancelled", "queued"):
        new = messages.new("gone@example.net" if name == "suppressed" else f"{name}@example.net")
        await store.messages.accept(new)
        ids[name] = new.id
    due = {each.address.partition("@")[0]: each for each in await store.queue.due(simulated=True, most=100)}
    for name in ("delivered", "bounced", "deferred", "failed"):
        await store.queue.record([outcome(due[name], RecipientStatus(name), clock())])
    await store.queue_control.cancel(ids["cancelled"], "no more", account.id)
    if indexed:
        clock.now += INDEXED_AFTER
        store.search_index = replace(store.search_index, block_messages=1)
        await index_all(store)
        assert await count_of(store, "search_blocks") == 7
    for name, message_id in ids.items():
        for few in (1, 20_000):
            store.mail_log = replace(store.mail_log, few_listed=few)
            assert await found(store, account.id, MailFilter(outcome=RecipientOutcome(name))) == [message_id], name
    page = await store.mail_log.page(account.id, MailFilter(), None, 100)
    assert {each.recipients[0].outcome.value: each.id for each in page.messages} == ids


async def test_filters_and_words_are_combined(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    store = small(store)
    for number in range(12):
        await store.messages.accept(made(messages, number))
    await record(store, clock, [RecipientStatus.DELIVERED, RecipientStatus.BOUNCED] * 6)
    clock.now += INDEXED_AFTER
    plain = replace(store.mail_log, uses_index=False)
    await index_all(store)
    everything = await plain.page(account.id, MailFilter(), None, 100)
    times = [identifier_time(each.id) for each in everything.messages]
    for wanted in (
        MailFilter(recipient="ada@example.net"),
        MailFilter(recipient="mail.example.net"),
        MailFilter(recipient="o'neil@example.com", words=("willkommen",)),
        MailFilter(sender="a@example.com", status=MessageStatus.FAILED),
        MailFilter(sender="example.com", words=("ada",), outcome=RecipientOutcome.BOUNCED),
        MailFilter(tag="one", words=("inv",), status=MessageStatus.DELIVERED),
        MailFilter(words=("example",), since=times[9], until=times[2]),
        MailFilter(since=times[9], until=times[2]),
        MailFilter(words=(everything.messages[4].id,)),
        MailFilter(words=("msg_", "ada")),
        MailFilter(words=("msg_1", everything.messages[3].id[:-3])),
    ):
        page = await plain.page(account.id, wanted, None, 100)
        expected = [each.id for each in page.messages]
        assert expected, wanted
        assert await found(store, account.id, wanted) == expected, wanted


@pytest.mark.parametrize("indexed", [False, True])
async def test_metadata_is_found_as_a_whole(
    store: Store, messages: Messages, account: Account, clock: Clock, indexed: bool
) -> None:
    """Neither a part of a value nor a value that looks like an entry is found."""
    store = small(store)
    kept = [
        {"a": "1"},
        {"a": "12"},
        {"b": '"a":"1"', "c": "x:y"},
        {"a": "1", "d": "Köln"},
        {"xa": "1"},
        {"a": ""},
        None,
    ]
    ids = []
    for metadata in kept:
        text = None if metadata is None else read_metadata(metadata)
        new = structs.replace(messages.new(), metadata=text)
        await store.messages.accept(new)
        ids.append(new.id)
    if indexed:
        clock.now += INDEXED_AFTER
        store.search_index = replace(store.search_index, block_messages=len(kept))
        await index_all(store)
        assert await count_of(store, "search_blocks") == 1
    for entry, numbers in (
        (("a", "1"), [3, 0]),
        (("a", ""), [5]),
        (("b", '"a":"1"'), [2]),
        (("c", "x:y"), [2]),
        (("d", "Köln"), [3]),
        (("d", "köln"), []),
        (("A", "1"), []),
    ):
        wanted = MailFilter(metadata=entry)
        assert await found(store, account.id, wanted) == [ids[number] for number in numbers], entry


async def test_pages_end_with_their_time(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    store = small(store)
    for number in range(14):
        await store.messages.accept(made(messages, number))
    clock.now += INDEXED_AFTER
    await index_all(store)
    ticks = count()
    for query in ("ada", "example", "net 7", "nothing"):
        expected = await plainly(store, account.id, query)
        store.mail_log = replace(store.mail_log, clock=lambda: float(next(ticks)))
        assert await found(store, account.id, MailFilter(words=query_words(query)), most=5) == expected


async def test_a_block_goes_with_the_first_of_its_messages(store: Store, messages: Messages, clock: Clock) -> None:
    store = small(store)
    for number in range(9):
        await store.messages.accept(made(messages, number))
    await record(store, clock, [RecipientStatus.DELIVERED] * 6)
    clock.now += INDEXED_AFTER
    await index_all(store)
    assert await count_of(store, "search_blocks") == 2
    deleted = await store.deletion.mail(START, clock.now, budget=12)
    assert 0 < deleted.deleted < 4
    before = await count_of(store, "search_terms")
    await index_all(store)
    assert await count_of(store, "search_blocks") == 1
    assert 0 < await count_of(store, "search_terms") < before
    for query in QUERIES:
        assert await found(store, messages.account_id, MailFilter(words=query_words(query))) == await plainly(
            store, messages.account_id, query
        )
    for _ in range(20):
        await store.deletion.mail(START, clock.now, budget=100)
    await index_all(store)
    assert await count_of(store, "search_blocks") == await count_of(store, "search_terms") == 0
    assert len(await found(store, messages.account_id, MailFilter(words=("example",)))) == 3  # that are not final


async def test_messages_that_went_another_way_are_missed(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    store = small(store)
    for number in range(8):
        await store.messages.accept(made(messages, number))
    clock.now += INDEXED_AFTER
    await index_all(store)
    oldest = await store.engine.rows("SELECT id FROM messages ORDER BY id LIMIT 1", {})
    await store.engine.change(
        "DELETE FROM messages WHERE account_id = :account AND id = :id", {"account": account.id, "id": oldest[0][0]}
    )
    await index_all(store)
    await index_all(store)
    assert await count_of(store, "search_blocks") == 1
    assert len(await found(store, account.id, MailFilter(words=("example",)))) == 7


async def test_a_crash_leaves_nothing_half_indexed(database: Database, clock: Clock) -> None:
    class Crash(Exception):
        pass

    async with database.open(inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=100)
        messages = Messages(Environment(now=clock), account.id)
        for number in range(4):
            await small(store).messages.accept(made(messages, number))
        clock.now += INDEXED_AFTER
        writes = count()

        async def failing(began: float) -> None:
            if next(writes) == 4:
                raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(store.search_index), "_rest", lambda _, began: failing(began))
            with pytest.raises(Crash):
                await index_all(store)
        assert await count_of(store, "search_terms") > 0
        assert len(await found(store, account.id, MailFilter(words=("example",)))) == 4
    async with database.open(inline=True) as store:
        await index_all(small(store))
        assert len(await found(store, account.id, MailFilter(words=("example",)))) == 4
        ((blocks, used),) = await store.engine.rows("SELECT count(*), sum(size) FROM search_blocks", {})
        assert (blocks, used) == (1, 4)
        assert await store.engine.rows("SELECT DISTINCT block FROM search_terms", {}) == await store.engine.rows(
            "SELECT number FROM search_blocks", {}
        )


async def test_the_chore_is_kept_while_a_block_is_made(
    store: Store,
    messages: Messages,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    for number in range(4):
        await small(store).messages.accept(made(messages, number))
    clock.now += INDEXED_AFTER
    asked: list[float] = []
    most = 8

    async def has_chore(_self: object, name: str) -> bool:
        assert name == "search"
        asked.append(trio.current_time())
        return len(asked) < most

    monkeypatch.setattr(type(store.engine), "has_chore", has_chore)
    store.search_index = replace(store.search_index, share=1e-9)
    assert not await store.search_index.index_some()
    assert [after - before for before, after in pairwise(asked)] == pytest.approx([CHORE_RENEWED_EVERY] * (most - 1))
    assert await count_of(store, "search_positions") == 0
    most = 10**9
    await index_all(small(store))
    assert await store.engine.rows("SELECT size FROM search_blocks", {}) == [(4,)]


# ---- words

WORD_CHARACTERS = st.sampled_from("aAbBß0.@-_+'\"\\ \t\n\0éÉ領収ﬁ\U0010ffff\u2028%*")


@settings(max_examples=500)
@given(text=st.text(WORD_CHARACTERS, max_size=40), query=st.text(WORD_CHARACTERS, max_size=6))
def test_a_text_holds_what_its_terms_begin_with(text: str, query: str) -> None:
    try:
        words = query_words(query)
    except Refused:
        return
    text = folded(text)
    for word in words:
        assert holds(text, word) == any(term.startswith(word) for term in terms(text))
        assert "\0" not in word
    assert all("\0" not in term and "\U0010ffff" not in term for term in terms(text))


@pytest.mark.parametrize(
    "query", ["", " ", "-", '"', "*", "()", "\0", "a" * (QUERY_LENGTH + 1), "a b c d e f g h i", "😀"]
)
def test_queries_that_cannot_be_searched(query: str) -> None:
    with pytest.raises(Refused, match="q"):
        query_words(query)


@pytest.mark.parametrize(
    "query", ['"', "AND", "NEAR(", "a*", "col:umn", "a' OR 1=1 --", "%", "{}", "\\", "^a", "=bounced"]
)
async def test_no_syntax_passes_through(store: Store, messages: Messages, account: Account, query: str) -> None:
    store = small(store)
    await store.messages.accept(structs.replace(messages.new("a@example.net"), subject=f"about {query}"))
    await store.messages.accept(messages.new("a@example.net"))
    try:
        words = query_words(query)
    except Refused:
        return
    expected = await plainly(store, account.id, query)
    assert await found(store, account.id, MailFilter(words=words)) == expected


def test_what_strangers_write_makes_no_large_index() -> None:
    replies = [".".join(f"{number}{each:x}" for each in range(400)) for number in range(50)]
    recipients = tuple(
        _RecipientTexts("bounced", f"a{number}@example.net", each) for number, each in enumerate(replies)
    )
    message = MessageTexts("msg_1", "failed", "api", "shop@example.com Hello", "[]", None, recipients)
    assert len(message.whole()) == SEARCHED_LENGTH
    assert len(message.terms()) <= SEARCHED_LENGTH // 2 + 3
    assert message.has(["a49@example.net"])
    assert not message.has(["49399"])


def test_terms_are_sorted_in_steps() -> None:
    postings = {f"{number * 7919 % 10_007:05}": "0000" for number in range(5_000)}
    assert _in_order(postings) == sorted(postings.items())


async def test_unreadable_tags_of_one_message_stop_no_indexing(store: Store, messages: Messages, clock: Clock) -> None:
    small(store)
    new = [made(messages, number) for number in range(4)]
    for message in new:
        await store.messages.accept(message)
    change = "UPDATE messages SET tags = :tags WHERE id = :id"
    await store.engine.change(change, {"tags": '{"one": 1}', "id": new[1].id})
    clock.now += 2 * INDEXED_AFTER
    await index_all(store)
    assert await count_of(store, "search_blocks") == 1
    ((ids,),) = await store.engine.rows("SELECT ids FROM search_blocks", {})
    assert [len(ids), new[1].id.removeprefix("msg_") in ids] == [4 * ID, True]
