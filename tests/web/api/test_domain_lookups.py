"""DNS checks of domains: an account whose DNS does not answer does not delay other accounts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from appliance.config.load import load
from appliance.dns.check import CheckedRecord
from appliance.dns.records import DnsRecord, RecordKind
from appliance.model.mail import RecordStatus
from appliance.web.api import domains
from appliance.web.api.domains import DNS_CHECKS, DNS_TIMEOUT, DomainLookups

DEAD = DnsRecord(RecordKind.SPF, "dead.example", "v=spf1 -all", "")
QUICK = DnsRecord(RecordKind.SPF, "quick.example", "v=spf1 -all", "")


async def dns(_resolver: object, _host: str, wanted: list[DnsRecord]) -> list[CheckedRecord]:
    """A DNS that answers for one of them at once, and for the other never."""
    if DEAD in wanted:
        await trio.sleep_forever()
    return [CheckedRecord(record, RecordStatus.OK) for record in wanted]


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
