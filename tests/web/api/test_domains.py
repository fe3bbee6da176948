"""DNS checks of domains: an account whose DNS does not answer does not delay other accounts; the audit log tells of a
verification that succeeded, and of no other.
"""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from appliance.config.load import load
from appliance.dns.check import CheckedRecord
from appliance.dns.records import DnsRecord, RecordKind
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.keys.dkim_keys import SigningKeys
from appliance.model.accounts import RecordStatus
from appliance.model.dashboard import Actor
from appliance.store import open_store
from appliance.store.domains import Domains
from appliance.web import exchange
from appliance.web.api import domains
from appliance.web.api.domains import DNS_CHECKS, DNS_TIMEOUT, DomainLookups, DomainRoutes

DEAD = DnsRecord(RecordKind.SPF, "dead.example", "v=spf1 -all", "")
QUICK = DnsRecord(RecordKind.SPF, "quick.example", "v=spf1 -all", "")


async def dns(_resolver: object, wanted: list[DnsRecord]) -> list[CheckedRecord]:
    """A DNS that answers for one of them at once, and for the other never."""
    if DEAD in wanted:
        await trio.sleep_forever()
    return [CheckedRecord(record, RecordStatus.OK) for record in wanted]


async def no_zone(*_: object) -> None:
    """A DNS without SOA records."""


async def test_dead_dns_delays_no_other_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """However often one account asks for a domain that does not answer, another's is looked up at once."""
    monkeypatch.setattr(domains, "check", dns)
    services: Any = SimpleNamespace(config=load(None, {}, tmp_path))
    lookups = DomainLookups(services)
    async with trio.open_nursery() as nursery:
        for _ in range(2 * DNS_CHECKS):
            nursery.start_soon(lookups.check, "acc_one", [DEAD])
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        assert [each.status for each in await lookups.check("acc_other", [QUICK])] == [RecordStatus.OK]
        assert trio.current_time() == began
    assert trio.current_time() == began + DNS_TIMEOUT


@pytest.mark.parametrize(("refused", "lines"), [("record_dns", ["domain.checked"]), ("prove", [])])
async def test_a_storage_that_refuses_leaves_the_audit_log_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, lines: list[str]
) -> None:
    """Where only what DNS showed is not kept, the proof has its line; where the proof fails there is none."""
    monkeypatch.setattr(domains, "check", dns)
    monkeypatch.setattr(domains, "find_zone", no_zone)
    monkeypatch.setattr(exchange, "request_id", lambda: "req_1")
    env, config = Environment(), load(None, {}, tmp_path)
    async with open_store(tmp_path, env, inline=True) as store:
        keys = SigningKeys(store, env, bytes(32))
        given = {"config": config, "store": store, "env": env, "signing_keys": keys}
        routes = DomainRoutes(cast(Any, SimpleNamespace(**given, auth=SimpleNamespace(forget=lambda: None))))
        account = await store.accounts.create("demo", "demo@example.org", "hash")
        user = await store.accounts.user_by_email(account.email)
        assert user is not None
        await store.domains.register(account.id, "quick.example")
        await keys.known(account.id, "quick.example")

        async def refuse(*_: object) -> None:
            def busy(_: object) -> None:
                raise StorageUnavailable("busy")

            await store.engine.write(busy)

        monkeypatch.setattr(Domains, refused, refuse)
        with suppress(StorageUnavailable):
            async with store.audit.noting(Actor("user", "x"), "domain.checked", "192.0.2.1", (account.id,)):
                await routes.verify_domain(user, "quick.example")
        assert (await store.domains.find(account.id, "quick.example")).usable == bool(lines)
        assert [each.action for each in await store.audit.page(account.id)] == lines
