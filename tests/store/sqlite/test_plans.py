"""How SQLite finds what the verbs look for: by an index, without a walk through a table or a sort."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from appliance.model.accounts import Account
from appliance.model.feedback import QueueShare, ShareScope
from appliance.store import Store, domains, feedback, mail_log, queue_control, templates, webhooks
from appliance.store.accounts import _LEDGER
from appliance.store.engine import Bindings, Tx, run
from appliance.store.retention import ANY_OLD, FIND_BODIES, FIND_EVENTS, FIND_LINES, FIND_MAIL
from appliance.store.search_index import _CHANGES
from appliance.store.sqlite.connection import Connection
from appliance.store.statistics import _NEW_FEEDBACK
from appliance.store.webhook_history import _OF_MESSAGE, _PAGE


async def plan(store: Store, query: str, wanted: Bindings) -> list[str]:
    return [str(step) for *_, step in await store.engine.rows(f"EXPLAIN QUERY PLAN {query}", wanted)]


# ---- accounts and their keys
async def test_an_old_page_of_the_ledger_is_found_by_its_id(store: Store, account: Account) -> None:
    """Nothing newer is read through on the way: a long ledger would hold the event loop."""
    wanted = {"account_id": account.id, "before": "led_", "most": 1}
    assert await plan(store, _LEDGER, wanted) == ["SEARCH credit_ledger USING PRIMARY KEY (account_id=? AND id<?)"]


INSERT_KEY = """INSERT INTO api_keys (id, account_id, key_sha256, hint, scope, test, created_at, revoked_at)
    VALUES (:id, :account_id, :hash, 'abcd', 'send', 0, 1, 2)"""


async def test_a_page_of_keys_is_as_quick_with_a_thousand_revoked(store: Store, account: Account) -> None:
    steps = []

    def add(tx: Tx) -> None:
        for _ in range(200):
            key = uuid4().hex
            run(tx, INSERT_KEY, {"id": f"key_{key}", "account_id": account.id, "hash": key.encode()})

    for _ in range(2):
        await store.engine.write(add)
        steps.append(await _steps_of_a_page(store, account))
    assert steps[0] == steps[1] > 0


async def _steps_of_a_page(store: Store, account: Account) -> int:
    async with counted_steps(store) as count:
        await store.access.newest_keys(account.id, None, 10)
    return count()


@asynccontextmanager
async def counted_steps(store: Store) -> AsyncIterator[Callable[[], int]]:
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    reader = await store.engine.read(lambda tx: tx)
    assert isinstance(reader, Connection)
    reader.set_progress_handler(step, 10)
    try:
        yield lambda: count
    finally:
        reader.set_progress_handler(None)


# ---- what is old
@pytest.mark.parametrize("query", [FIND_LINES, ANY_OLD])
async def test_old_lines_of_the_ledger_are_found_by_index(store: Store, query: str) -> None:
    wanted = {"account_id": "a", "after": "", "limit": "z", "most": 1, "day": 1, "hour": 1, "before": 1}
    steps = await plan(store, query, {name: value for name, value in wanted.items() if f":{name}" in query})
    assert any(step.startswith("SEARCH") for step in steps)
    assert not [step for step in steps if "TEMP B-TREE" in step or (step.startswith("SCAN") and "CONSTANT" not in step)]


@pytest.mark.parametrize("query", [FIND_BODIES, FIND_MAIL, FIND_EVENTS])
async def test_what_is_old_is_found_by_index(store: Store, query: str) -> None:
    steps = await plan(store, query, {"after": "", "limit": "z", "most": 1})
    assert any(step.startswith("SEARCH") for step in steps)
    assert not [step for step in steps if "SCAN" in step or "TEMP B-TREE" in step]


# ---- messages and the queue
async def test_rare_ones_have_an_index(store: Store) -> None:
    rare = {status.value: among for status, among in mail_log._RARE.items() if status is not None}
    assert rare.keys() == {"failed", "partial"}
    for index, among in {**rare, "test": mail_log._TESTS}.items():
        query = mail_log._BLOCK_END.format(among=among)
        steps = await plan(store, query, {"account_id": "a", "before": "~", "from": "", "block": 1})
        assert [f"messages_{index} (account_id=? AND id>? AND id<?)" in step for step in steps] == [True]


async def test_the_newest_problems_are_found_by_when_they_happened(store: Store) -> None:
    assert await plan(store, mail_log._PROBLEMS, {"account_id": "a", "since": 1, "most": 8}) == [
        "CO-ROUTINE p",
        "SEARCH r USING INDEX recipients_problems (account_id=? AND <expr>>?)",
        "SCAN p",
        "SEARCH m USING PRIMARY KEY (account_id=? AND id=?)",
        "SEARCH d USING PRIMARY KEY (domain=?) LEFT-JOIN",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH a USING PRIMARY KEY (recipient_id=?)",
    ]


async def test_messages_of_which_something_came_back_have_an_index(store: Store) -> None:
    steps = [await plan(store, query, {"account_id": "a", "most": 9}) for query in mail_log._RARE_OUTCOMES.values()]
    assert steps == [
        ["SEARCH scheduled_messages USING PRIMARY KEY (account_id=?)"],
        ["SEARCH complaints USING PRIMARY KEY (account_id=?)"],
        ["SEARCH recipients USING INDEX recipients_late_bounces (account_id=?)"],
    ]


async def test_the_summary_of_the_queue_reads_only_the_index(store: Store) -> None:
    steps = await plan(store, queue_control._SUMMARY, {"now": 0, "pools": 1, "domains": 1})
    assert [step for step in steps if " recipients " in step] == [
        "SEARCH recipients USING COVERING INDEX recipients_lanes (simulated=?)"
    ]


# ---- webhooks
async def test_finding_what_is_due_is_a_matter_of_an_index(store: Store) -> None:
    looks = [
        webhooks._LANES,
        f"{webhooks._LANES_OF.before}'acc_a'{webhooks._LANES_OF.after}",
        webhooks._DUE,
        webhooks._NEXT_DUE,
        webhooks._GIVE_UP,
        webhooks._BRING_FORWARD,
    ]
    bindings = dict.fromkeys(("cause", "webhook_id", "now", "most", "reason", "beyond"), 0)
    for look in looks:
        steps = await plan(store, look, bindings)
        assert steps
        few = ("SCAN walk", "SCAN waiting", "SCAN c", "SCAN CONSTANT ROW")  # what was found so far; the three causes
        assert [step for step in steps if step.startswith("SCAN") and not step.startswith(few)] == [], steps


async def test_a_page_of_a_message_is_a_matter_of_an_index(store: Store) -> None:
    names = dict.fromkeys(("account_id", "message_id", "before", "most"), "x")
    for condition, index in (("", "PRIMARY KEY"), (_OF_MESSAGE, "by_message")):
        steps = await plan(store, _PAGE.format(condition=condition), names)
        assert any(index in step for step in steps), steps
        assert not any(step.startswith(("SCAN", "USE TEMP")) for step in steps), steps


# ---- the search index
async def test_changes_of_messages_that_are_not_indexed_are_not_read(store: Store) -> None:
    assert await plan(store, _CHANGES, {"most": 1}) == [
        "SCAN p",
        "SEARCH c USING PRIMARY KEY (account_id=? AND message_id<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH b USING INDEX search_blocks_by_account (account_id=? AND after_id<?)",
    ]


# ---- feedback
async def test_feedback_is_counted_without_reading_what_was_counted(store: Store) -> None:
    steps = await plan(store, _NEW_FEEDBACK, {"after": "evt_a", "until": "evt_b"})
    assert steps[0].startswith("SEARCH e USING PRIMARY KEY (id>?")
    assert not [step for step in steps if step.startswith("SCAN")]


async def test_a_recipient_of_a_token_is_found_by_its_message(store: Store, account: Account) -> None:
    wanted = dict.fromkeys(("earliest", "latest", "first", "last", "name"), "")
    steps = await plan(store, feedback._BY_IDS, wanted)
    assert "SEARCH r USING PRIMARY KEY (message_id>? AND message_id<?)" in steps
    assert not [step for step in steps if step.startswith("SCAN")]
    (step,) = await plan(store, feedback.NEXT_MAIL, {})
    assert step == "SCAN feedback_mail USING COVERING INDEX feedback_mail_next"


async def test_room_in_the_feedback_queue_is_found_without_reading_the_queue(store: Store) -> None:
    """Of a short queue, in which each share has room; and of a longer one, whose shares are read."""
    shares = [QueueShare(ShareScope.NETWORK, "192.0.2.1"), QueueShare(ShareScope.TOKEN, "token")]
    steps = []
    for mails in (1, 100, 200, 400):
        for number in range(mails):
            await store.feedback.add(["x"], b"mail", [*shares[:1], QueueShare(ShareScope.TOKEN, str(number))])
        async with counted_steps(store) as count:
            await store.feedback.check_room(shares)
        steps.append(count())
    for short, long in (steps[:2], steps[2:]):
        assert 0 < long <= short + 2
    (step,) = await plan(store, feedback._DELETE_EMPTY, {})
    assert step == "SCAN feedback_counts USING INDEX feedback_counts_empty"


# ---- templates and domains
async def test_deleted_templates_are_not_read_to_find_those_in_use(store: Store) -> None:
    queries = {
        templates._COUNT: "templates_live",
        f"{templates._TEMPLATES} AND t.alias > :after ORDER BY t.alias LIMIT :most": "templates_live",
        templates._TRIM_DELETED: "templates_deleted",
    }
    names = dict.fromkeys(("account_id", "alias", "after", "most", "kept"), 0)
    for query, index in queries.items():
        wanted = {name: value for name, value in names.items() if f":{name}" in query}
        steps = [step for step in await plan(store, query, wanted) if "template_versions" not in step]
        assert any(index in step for step in steps), steps
        assert not [step for step in steps if step.startswith(("SCAN", "USE TEMP"))], steps


async def test_the_selectors_of_a_domain_are_found_by_index(store: Store) -> None:
    (step,) = await plan(store, domains._SELECTORS, {"domain": "example.com"})
    assert step == "SEARCH dkim_keys USING COVERING INDEX dkim_keys_by_domain (domain=?)"
