"""What the DNS says decides before any server is asked: no such domain, no mail wanted, not known."""

from pathlib import Path

from tests.e2e.delivery.telling import customer_reads
from tests.e2e.delivery.world import CREDITS, delays, world
from tests.fakes.dns import Trouble


async def test_domains_that_take_no_mail(tmp_path: Path) -> None:
    """Null MX and NXDOMAIN bounce at once, the credit returned and no address suppressed; the rest stays deferred."""
    async with world(tmp_path, delays("1h")) as made:
        made.publish("null.test", MX=["0 ."])
        made.publish("servfail.test", MX=Trouble.SERVFAIL)
        made.publish("loop.test", CNAME=["pool.test."])
        made.publish("pool.test", CNAME=["loop.test."])
        made.publish("nowhere.test", MX=["10 missing.nowhere.test."])
        made.publish("myself.test", MX=["10 mail.example.com."])
        names = ["null", "missing", "myself", "servfail", "loop", "nowhere"]
        sent = {name: await made.send(f"ada@{name}.test") for name in names}
        await made.tried(*sent.values())
        statuses = {name: made.recipient(message).status for name, message in sent.items()}
        assert statuses == {
            "null": "bounced",
            "missing": "bounced",
            "myself": "bounced",
            "servfail": "deferred",
            "loop": "deferred",
            "nowhere": "deferred",
        }
        assert made.credits() == CREDITS - 3
        assert made.rows("SELECT * FROM suppressions") == []
        assert made.events(sent["null"]) == ["email.bounced"]
        assert (made.recipient(sent["null"]).response or "").startswith("5.1.10 ")
        assert (made.recipient(sent["missing"]).response or "").startswith("5.1.2 ")
        assert (made.recipient(sent["servfail"]).response or "").startswith("4.4.3 ")
        for name in ("null", "missing", "myself"):
            told = await customer_reads(made, sent[name])
            assert "DNS leads to no mail server that can be asked, so none was" in told
            assert "the server" not in told


async def test_customers_are_not_told_which_resolver_is_silent(tmp_path: Path) -> None:
    """DNS that does not answer defers with a plain sentence; the log has the resolver's address."""
    async with world(tmp_path, delays("1h")) as made:
        made.publish("silent.test", MX=Trouble.SILENCE)
        message = await made.send("ada@silent.test")
        await made.tried(message)
        told = await customer_reads(made, message)
        assert "4.4.3 the DNS gave no usable answer in time" in told
        assert "127.0.0" not in told
        await made.logged("no answer from 127.0.0")
