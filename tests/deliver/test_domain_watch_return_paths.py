"""Return paths: in use once DNS shows them, and then the sender of every recipient's transaction."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from appliance.config.load import parse
from appliance.deliver.domain_watch import (
    DOMAINS_PER_ROUND,
    RETURN_PATH_CHECK_EVERY,
    RETURN_PATH_IN_USE_EVERY,
    DomainWatch,
    ReturnPathWatch,
)
from appliance.dns.records import Senders, return_path_records
from appliance.environment import Environment
from appliance.feedback.return_path import RecipientIds, ReturnPaths, read_address
from appliance.model.accounts import Role
from appliance.store import Store, open_store
from tests.deliver.simulated_delivery import INSTALLATION_KEY, Stage, message, one, stage
from tests.fakes.dns import Records, Trouble, Zone, ZoneResolver
from tests.fakes.mx import FakeMx

HOST, DOMAIN, NAME = "mail.example.com", "example.com", "bounces.example.com"
SERVER: Zone = {HOST: {"A": ["192.0.2.25"]}}
MX, SPF = {"MX": [f"10 {HOST}."]}, {"TXT": [f'"v=spf1 a:{HOST} -all"']}
LATER = b"451 4.3.0 later\r\n"

# ---- when they are in use


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Environment(), inline=True) as opened:
        yield opened


def watch_domains(store: Store, dns: ZoneResolver, inbound: str = '["127.0.0.1:2525"]') -> DomainWatch:
    config = parse(f'[server]\nhostname = "{HOST}"\n[inbound]\nbind = {inbound}\n', Path("/tmp/config.toml"))
    return DomainWatch(config, store, Environment(), lambda: dns)


def watch(store: Store, dns: ZoneResolver, inbound: str = '["127.0.0.1:2525"]') -> ReturnPathWatch:
    return watch_domains(store, dns, inbound).return_paths


async def domain(store: Store) -> str:
    account = (await store.accounts.create("demo", "demo@example.org", "hash", Role.CUSTOMER, None)).id
    await store.access.add_domain(account, DOMAIN, usable=True)
    return account


async def test_a_return_path_is_used_once_dns_shows_both_records(store: Store) -> None:
    account, dns = await domain(store), ZoneResolver(SERVER)
    watching = watch(store, dns)
    not_enough: list[dict[str, Records]] = [
        {},
        {**MX},
        {**SPF},
        {"MX": ["10 elsewhere.example."], **SPF},
        {**MX, "TXT": Trouble.SERVFAIL},
    ]
    for shown in not_enough:
        dns.zone[NAME] = shown
        await watching.round()
        assert await store.domains.return_path(account, DOMAIN) is None, shown
        watching = watch(store, dns)
    dns.zone[NAME] = {**MX, **SPF}
    await watching.round()
    assert await store.domains.return_path(account, DOMAIN) == NAME


async def test_it_ends_after_an_hour_of_wrong_answers_only(store: Store, autojump_clock: MockClock) -> None:
    """Not at the first wrong one, and never because DNS could not be asked; shown again, it is used again."""
    account, dns = await domain(store), ZoneResolver({**SERVER, NAME: {**MX, **SPF}})

    async def in_use() -> bool:
        return await store.domains.return_path(account, DOMAIN) is not None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_domains(store, dns).run)
        await trio.sleep(RETURN_PATH_CHECK_EVERY / 2)
        assert await in_use()
        dns.zone[NAME] = {"MX": Trouble.SERVFAIL}
        await trio.sleep(3 * RETURN_PATH_IN_USE_EVERY)
        assert await in_use()
        dns.zone[NAME] = {}
        await trio.sleep(RETURN_PATH_IN_USE_EVERY + RETURN_PATH_CHECK_EVERY)
        assert await in_use()
        dns.zone[NAME] = {**MX, **SPF}
        await trio.sleep(RETURN_PATH_IN_USE_EVERY + RETURN_PATH_CHECK_EVERY)
        dns.zone[NAME] = {}
        await trio.sleep(RETURN_PATH_IN_USE_EVERY + RETURN_PATH_CHECK_EVERY)
        assert await in_use()  # the wrong answer before was not the last one
        await trio.sleep(RETURN_PATH_IN_USE_EVERY + RETURN_PATH_CHECK_EVERY)
        assert not await in_use()
        dns.zone[NAME] = {**MX, **SPF}
        await trio.sleep(2 * RETURN_PATH_CHECK_EVERY)
        assert await in_use()
        nursery.cancel_scope.cancel()


async def test_without_a_listener_nothing_is_looked_up(store: Store) -> None:
    account, dns = await domain(store), ZoneResolver({**SERVER, NAME: {**MX, **SPF}})
    await watch(store, dns, "[]").round()
    assert (await store.domains.return_path(account, DOMAIN), dns.asked) == (None, {})


async def test_one_that_changed_while_dns_was_asked_is_not_used(store: Store) -> None:
    account, dns = await domain(store), ZoneResolver({**SERVER, NAME: {**MX, **SPF}})
    read = await store.domains.find(account, DOMAIN)
    await store.access.add_domain(account, DOMAIN, usable=True, return_path=f"rp.{DOMAIN}")
    watching = watch(store, dns)
    limiter = trio.CapacityLimiter(1)
    records = return_path_records(NAME, Senders((HOST,)), (HOST,))
    await watching._check(dns, limiter, account, read, records)
    assert await store.domains.return_path(account, DOMAIN) is None


async def test_many_domains_are_looked_at_by_turns(store: Store, autojump_clock: MockClock) -> None:
    account, dns = await domain(store), ZoneResolver(SERVER)
    for number in range(DOMAINS_PER_ROUND + 5):
        await store.access.add_domain(account, f"d{number}.example", usable=True)
    watching = watch(store, dns)
    await watching.round()
    assert sum(count for (_, kind), count in dns.asked.items() if kind == "MX") == DOMAINS_PER_ROUND
    await trio.sleep(RETURN_PATH_CHECK_EVERY)
    await watching.round()
    assert {dns.asked[f"bounces.d{number}.example", "MX"] for number in range(DOMAINS_PER_ROUND + 5)} == {1}


# ---- what leaves with them


async def senders(played: Stage, server: FakeMx) -> dict[str, str]:
    found = [(received.recipients, received.mail.partition(" ")[0].strip("<>")) for received in server.messages]
    assert all(len(recipients) == 1 for recipients, _ in found)
    return {recipients[0].strip("<>"): sender for recipients, sender in found}


async def recipient_of(played: Stage, address: str) -> str:
    read = read_address(address)
    assert read is not None
    assert read.token is not None
    ids = ReturnPaths(INSTALLATION_KEY).check(read.token, NAME, played.env.now())
    assert isinstance(ids, RecipientIds)
    query = "SELECT address FROM recipients WHERE id BETWEEN :first AND :last"
    ((found,),) = await played.rows(query, first=ids.first, last=ids.last)
    return str(found)


async def test_every_recipient_has_a_transaction_and_a_token(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        addresses = [f"{name}@a.test" for name in ("ada", "grace", "linus")]
        sent = await played.send(*addresses)
        await played.final(sent)
        found = await senders(played, server)
        assert {address: await recipient_of(played, sender) for address, sender in found.items()} == {
            address: address for address in addresses
        }
        assert len({received.data for received in server.messages}) == 1
        assert played.signer.signed == 1
        assert await played.rows("SELECT status, envelope_from FROM messages") == [("delivered", "shop@example.com")]
        bodies = await played.rows("SELECT body FROM events")
        assert len(bodies) == 3
        assert all(b'"from":"shop@example.com"' in bytes(body) for (body,) in bodies)


async def test_without_a_return_path_recipients_go_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send("ada@a.test", "grace@a.test"))
    assert [(len(each.recipients), each.mail.partition(" ")[0]) for each in server.messages] == [
        (2, "<shop@example.com>")
    ]


async def test_a_retry_has_the_same_token(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"RCPT": [LATER, b"250 ok\r\n"]})
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        await played.final(await played.send("ada@a.test"))
        said = [line.split()[1] for line in server.commands if line.startswith("MAIL FROM:")]
        assert len(said) == 2
        assert len(set(said)) == 1
        sender = said[0].removeprefix("FROM:").strip("<>")
        assert await recipient_of(played, sender) == "ada@a.test"
        dialogues = await played.rows("SELECT dialogue FROM attempts ORDER BY number")
        assert [sender in dialogue for (dialogue,) in dialogues] == [False, False]
        assert [f"b+\\u2026@{NAME}" in dialogue or f"b+…@{NAME}" in dialogue for (dialogue,) in dialogues] == [
            True,
            True,
        ]


@pytest.mark.parametrize("sender", ["bounce@other.example", "bounce@sub.example.com", ""])
async def test_a_sender_elsewhere_is_kept(tmp_path: Path, autojump_clock: MockClock, sender: str) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        new = message(played.env, played.accounts["demo"], "ada@a.test", "grace@a.test")
        values = {name: getattr(new, name) for name in new.__struct_fields__}
        await played.store.messages.accept(type(new)(**{**values, "envelope_from": sender}))
        played.scheduler.new_mail.request_poll()
        await played.final(new.id)
    assert [(len(each.recipients), each.mail.partition(" ")[0]) for each in server.messages] == [(2, f"<{sender}>")]


async def test_one_refused_recipient_leaves_the_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"RCPT grace@a.test": b"550 5.1.1 no such user\r\n"})
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        sent = await played.send("ada@a.test", "grace@a.test", "linus@a.test")
        await played.final(sent)
        rows = await played.rows("SELECT address, status FROM recipients")
        assert dict(rows) == {"ada@a.test": "delivered", "grace@a.test": "bounced", "linus@a.test": "delivered"}
        assert await played.rows("SELECT status FROM messages") == [("partial",)]
