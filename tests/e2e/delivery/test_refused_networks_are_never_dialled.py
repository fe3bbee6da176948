"""An MX that leads into the operator's own networks is bounced, and not one connection is made."""

import re
from pathlib import Path

from tests.e2e.delivery.telling import customer_reads
from tests.e2e.delivery.world import CREDITS, world
from tests.fakes.mx import FakeMx

TARGETS = {
    "loopback": {"A": ["127.0.0.1"]},
    "loopback6": {"AAAA": ["::1"]},
    "private": {"A": ["10.0.0.1", "192.168.1.1"]},
    "linklocal": {"A": ["169.254.169.254"]},
    "mapped": {"AAAA": ["::ffff:127.0.0.1"]},
    "translated": {"AAAA": ["64:ff9b::7f00:1"]},
    "unspecified": {"A": ["0.0.0.0"]},
}

ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9a-f]*::[0-9a-f:]*")


def assert_tells_no_address(told: str) -> None:
    """Nothing in all that a customer reads of a message is an IP address."""
    times = re.sub(r"\d\d:\d\d:\d\d(\.\d+)?Z?", "", told)
    assert ADDRESS.search(times) is None, told


async def test_refused_networks_are_never_dialled(tmp_path: Path) -> None:
    """Loopback, private, link-local, mapped and translated addresses: bounced, credit returned, 0 connections."""
    async with world(tmp_path, allowed="") as made:
        canary = FakeMx()
        await made.domain("canary.test", canary)  # 127.0.0.x, where a server does listen
        sent = {"canary": await made.send("ada@canary.test")}
        for name, records in TARGETS.items():
            made.publish(f"mx.{name}.test", **records)
            made.publish(f"{name}.test", MX=[f"10 mx.{name}.test."])
            sent[name] = await made.send(f"ada@{name}.test")
        await made.final(*sent.values())
        for name, message in sent.items():
            found = made.recipient(message)
            assert (found.status, found.billing, found.code) == ("bounced", "released", None), name
            assert (found.response or "").startswith(("5.4.4 ", "5.4.6 ")), name  # refused, or a loop to this machine
            assert_tells_no_address(await customer_reads(made, message))
        assert canary.sessions == 0
        assert made.credits() == CREDITS
        assert made.rows("SELECT * FROM suppressions") == []
        assert made.complaints() == []
        await made.logged("192.168.1.1 is a private address")
