"""The watch records problems that two checks find, and mails them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from appliance.attention.mail import PROBLEMS_LISTED, Mailer, link_texts, problem_texts
from appliance.attention.problems import DOMAINS_LISTED, Problems
from appliance.attention.watch import MAILS_AT_ONCE, AttentionWatch
from appliance.config.load import parse as parse_settings
from appliance.environment import Environment
from appliance.intake.limits import FreeSpace
from appliance.model.accounts import AccountRole, PasswordLink
from appliance.model.attention import MACHINE, AttentionItem, AttentionKind, NotifiedPerson, Notify, Severity
from appliance.store import Store, open_store
from appliance.store.engine import run
from appliance.times import HOUR, SECOND
from tests.loop_watch import Watch

SETTINGS = '[delivery]\nmode = "sandbox"\n[http]\nbase_url = "https://mail.example.com"\n'
SENDER = '[notifications]\nfrom = "alerts@example.com"\n'
LINK = PasswordLink("inv_1", "acc_1", None, "ann@example.org", AccountRole.VIEWER, 0, 7 * 24 * HOUR)
MANY_DOMAINS = """WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 9999)
    INSERT INTO domains (account_id, name, usable, created_at, dns)
    SELECT :account_id, printf('d%05d.example', n), 1, 0, :dns FROM numbers"""
BROKEN = '{"checked_at": 0, "dkim": "missing", "spf": "missing", "dmarc": "missing", "return_path": "missing"}'


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Environment(), inline=True) as opened:
        yield opened


async def watch_on(store: Store, tmp_path: Path, settings: str = SENDER) -> AttentionWatch:
    config, env = parse_settings(SETTINGS + settings, tmp_path / "config.toml"), Environment()
    account = await store.accounts.create("demo", "demo@example.org", "hash", credit=5)
    await store.access.add_domain(account.id, "example.com", usable=True)
    problems = Problems(config, store, env, FreeSpace(tmp_path, 0, 0, env))
    return AttentionWatch(problems, Mailer(config, store, env))


async def subjects(store: Store) -> list[str]:
    return [subject for (subject,) in await store.engine.rows("SELECT subject FROM messages ORDER BY id", {})]


async def test_a_problem_that_two_checks_find_is_mailed_once(store: Store, tmp_path: Path) -> None:
    watch, counts = await watch_on(store, tmp_path), []
    for _ in range(4):
        await watch.round()
        counts.append(len(await subjects(store)))
    assert counts == [0, 1, 1, 1]
    assert await subjects(store) == ["[mail.example.com] Credits are low: 5 left"]
    assert await store.attention.of(MACHINE) == []


async def test_another_process_does_not_mail_it_again(store: Store, tmp_path: Path) -> None:
    watch = await watch_on(store, tmp_path)
    again = AttentionWatch(watch.problems, watch.mailer)
    for checked in (watch, watch, again, again):
        await checked.round()
    assert len(await subjects(store)) == 1


async def test_a_problem_that_returns_is_checked_twice_again(store: Store, tmp_path: Path) -> None:
    watch, counts = await watch_on(store, tmp_path), []
    (account,) = await store.accounts.all()
    for credits in (0, 0, 1_000, -1_000, 0):
        if credits:
            await store.accounts.change_credits(account.id, credits)
        await watch.round()
        counts.append([row.ended_at is None for row in await store.attention.of(account.id)])
    assert counts == [[], [True], [False], [False], [True]]


async def test_without_a_sender_problems_are_recorded_only(store: Store, tmp_path: Path) -> None:
    watch = await watch_on(store, tmp_path, "")
    for _ in range(2):
        await watch.round()
    (account,) = await store.accounts.all()
    assert [row.problem.kind for row in await store.attention.of(account.id)] == [AttentionKind.CREDITS_LOW]
    assert await subjects(store) == []


async def test_a_person_gets_a_limited_number_of_mails(store: Store, tmp_path: Path) -> None:
    watch = await watch_on(store, tmp_path)
    (account,) = await store.accounts.all()
    user = await store.accounts.user_by_email(account.email)
    assert user is not None
    for _ in range(MAILS_AT_ONCE):
        watch.rate.take(user.id)
    for _ in range(3):
        await watch.round()
    assert await subjects(store) == []
    assert len(await store.attention.people_to_notify()) == 1


async def test_thousands_of_broken_domains_do_not_hold_the_event_loop(tmp_path: Path) -> None:
    async with open_store(tmp_path, Environment()) as store:
        watch = await watch_on(store, tmp_path)
        (account,) = await store.accounts.all()
        await store.engine.write(lambda tx: run(tx, MANY_DOMAINS, {"account_id": account.id, "dns": BROKEN}))
        steps = Watch()
        steps.before_run()
        trio.lowlevel.add_instrument(steps)
        await trio.lowlevel.checkpoint()
        steps.take()  # the step that began before
        for _ in range(2):
            await watch.round()
        shown = await watch.problems.shown(account, is_admin=False)
        trio.lowlevel.remove_instrument(steps)
        assert len([each for each in shown if each.kind is AttentionKind.DOMAIN_BROKEN]) == DOMAINS_LISTED
        assert len(await store.attention.of(account.id)) == DOMAINS_LISTED + 1
        assert await subjects(store) == ["[mail.example.com] DNS of d00000.example is broken, and 50 more"]
        assert steps.longest[0] < 0.005, steps.longest


def test_the_texts_name_the_link_its_lifetime_and_what_to_do() -> None:
    subject, text = link_texts(LINK, "https://m.example/#token=x", "acme", "https://m.example")
    assert subject == "Invitation to acme on m.example"
    assert "It works once, within 7 days:\n\nhttps://m.example/#token=x\n" in text
    problem = AttentionItem(
        AttentionKind.DISK_LOW, "", Severity.CRITICAL, "Disk space is low", "Free space.", "/dashboard/admin", SECOND
    )
    person = NotifiedPerson("usr_1", "ann@example.org", Notify.DAILY)
    subject, text = problem_texts(person, [problem, problem], "https://m.example")
    assert subject == "[m.example] Disk space is low, and 1 more"
    assert (
        "CRITICAL: Disk space is low\nSince 1970-01-01 00:00 UTC. Free space.\nhttps://m.example/dashboard/admin"
        in text
    )
    assert problem_texts(person, [problem] * (PROBLEMS_LISTED + 2), "https://m.example")[1].count("CRITICAL") == 50
    assert "And 2 more: https://m.example/dashboard\n" in problem_texts(person, [problem] * 52, "https://m.example")[1]
    assert "once a day. Change this at https://m.example/dashboard/account" in text


async def test_a_problem_that_no_check_has_stored_keeps_its_time_for_a_minute(tmp_path: Path) -> None:
    """Open pages ask again and again: a response that always differs would keep them at their fastest."""
    now = 90 * SECOND
    async with open_store(tmp_path, Environment(now=lambda: now)) as store:
        watch = await watch_on(store, tmp_path)
        (account,) = await store.accounts.all()
        await store.engine.write(lambda tx: run(tx, MANY_DOMAINS, {"account_id": account.id, "dns": BROKEN}))
        before = await watch.problems.shown(account, is_admin=False)
        now += 20 * SECOND
        assert await watch.problems.shown(account, is_admin=False) == before
