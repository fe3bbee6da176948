"""5.7.1 again and again: the provider does not want us, so the pool's mail is held and the operator is told."""

from pathlib import Path

import trio

from tests import engines
from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import FakeMx

REFUSED = b"550 5.7.1 Your address is on our list\r\n"
FAULTS = 10


async def release(made: World, pool: str) -> None:
    async with engines.beside(made.running.data_dir) as store:
        assert await store.pools.release(pool)


async def test_a_pool_that_refuses_us_is_held(tmp_path: Path) -> None:
    """After ten refusals in a row the rest waits untried, no address is suppressed, the log says so; then it goes."""
    async with world(tmp_path, delays("1h"), "[delivery.pools.default]", "concurrency = 1") as made:
        script: dict[str, bytes] = {"RCPT": REFUSED}
        server = FakeMx(answers=script)
        await made.domain("hostile.test", server)
        sent = [await made.send(f"user{number}@hostile.test") for number in range(FAULTS + 20)]
        await made.until(lambda: bool(made.rows(f"SELECT 1 FROM {engines.automatic_holds()}")))
        await trio.sleep(2.5)  # long enough for mail that does not heed the hold
        statuses = [made.recipient(message).status for message in sent]
        assert statuses.count("bounced") == FAULTS
        assert statuses.count("queued") == 20
        assert made.rows("SELECT * FROM suppressions") == []
        (loud,) = made.complaints()
        assert (loud["level"], loud["pool"]) == ("error", "hostile.test")
        assert "5.7.1" in loud["reason"]
        del script["RCPT"]
        await release(made, "hostile.test")
        await made.final(*sent)
        assert [made.recipient(message).status for message in sent].count("delivered") == 20
