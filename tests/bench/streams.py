"""What a newsletter costs login codes to the same provider.

    .venv/bin/python -m tests.bench.streams                     # 200,000 broadcast recipients
    .venv/bin/python -m tests.bench.streams --recipients 20000

An account has broadcast messages of 2 KB queued for one provider. Another one sends 20 transactional messages a second
to the same provider, before the newsletter is due and then beside it; its latency is that of the 202, and from the
request to the provider's reply. At last it sends as fast as it is answered, so that transactional mail always waits.
Then the newsletter's part of the deliveries counts.
"""

import argparse
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import apsw

from appliance.store import FILE_NAME
from appliance.times import SECOND
from tests.bench import deliver, report
from tests.bench.figures import Figure
from tests.bench.queued import fill_queue
from tests.bench.scheduled import Honest, database_of, honest_figures, measure_honest, send
from tests.running_appliance import add_account

PART = 0.09  # a tenth, but for the first and the last turns
RECIPIENTS, SECONDS = 200_000, 20.0
FLOOD = 6_000  # transactional messages sent as fast as they are answered
START = 12.0  # seconds until the server has started
UNDER_WAY = 3.0  # seconds from the newsletter's due time on

_SCHEDULE = "UPDATE recipients SET low = 1, next_attempt_at = :due"
_LEFT = "SELECT count(*) FROM recipients WHERE low = :low AND status = 'queued'"
_PART = "SELECT avg(low) FROM recipients WHERE delivered_at BETWEEN :since AND :until"
_LAST = "SELECT max(delivered_at) FROM recipients WHERE low = 0"


class Beside(NamedTuple):
    alone: Honest
    beside: Honest
    part: float  # of the deliveries, for the newsletter while transactional mail waits


def beside_a_newsletter(recipients: int, seconds: float = SECONDS, flood: int = FLOOD) -> Beside:
    with tempfile.TemporaryDirectory() as made, deliver.sink() as there:
        directory = Path(made)
        news = add_account(directory / "data", "news", credit=deliver.CREDITS)
        codes = add_account(directory / "data", "codes", credit=deliver.CREDITS)
        fill_queue(directory / "data", news.account_id, recipients)
        due_at = time.time() + seconds + START
        with closing(apsw.Connection(str(directory / "data" / FILE_NAME))) as connection:
            connection.execute(_SCHEDULE, {"due": int(due_at * SECOND)}).fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        os.sync()  # else the system writes out what was filled meanwhile
        with deliver.appliance(there.port, directory, codes) as running, database_of(running) as database:
            send(running, codes, 2.0)
            alone = measure_honest(running, database, codes, seconds)
            assert time.time() < due_at, "the newsletter was due already"
            time.sleep(due_at - time.time() + UNDER_WAY)
            beside = measure_honest(running, database, codes, seconds)
            began = time.time_ns() // 1000
            deliver.began_at(deliver.start_sending(running, flood))
            _wait_for_codes(database)
            ((last,),) = database.execute(_LAST).fetchall()
            assert _left(database, low=1), "the newsletter was too short"
            ((part,),) = database.execute(_PART, {"since": began, "until": last}).fetchall()
            assert isinstance(part, float)
    return Beside(alone, beside, part)


def _left(database: apsw.Connection, *, low: int) -> int:
    ((count,),) = database.execute(_LEFT, {"low": low}).fetchall()
    assert isinstance(count, int)
    return count


def _wait_for_codes(database: apsw.Connection) -> None:
    until = time.monotonic() + deliver.WITHIN
    while _left(database, low=0):
        assert time.monotonic() < until, "transactional mail is still queued"
        time.sleep(0.2)


def figures(recipients: int, seconds: float = SECONDS, flood: int = FLOOD) -> list[Figure]:
    seen = beside_a_newsletter(recipients, seconds, flood)
    return [
        *honest_figures(seen.alone, seen.beside, f"beside {recipients:,} broadcast recipients"),
        Figure("broadcast's part of the deliveries while transactional mail waits", "", seen.part, PART, at_least=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipients", type=int, default=RECIPIENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--flood", type=int, default=FLOOD)
    options = parser.parse_args()
    print(report.table(figures(options.recipients, options.seconds, options.flood), {}))


if __name__ == "__main__":
    main()
