"""A client that sends, reads or stays too slowly, or comes too often, is cut, and no other client notices."""

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.web.server import BODY_SLOW_START
from tests.e2e.raw import MESSAGE, Client, bearer, check_error, others_are_served, request, sending
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch
from tests.waiting import wait_until

LIMIT = 1.0  # seconds, of every phase below
MARGIN = 1.5  # seconds that a busy machine may add
TIMEOUTS = """
header_timeout = "1s"
body_timeout = "1s"
write_timeout = "1s"
keep_alive_timeout = "1s"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("running"), http=TIMEOUTS) as started:
        yield started
        assert started.complaints() == []


def was_cut_within(watch: Stopwatch, least: float, most: float) -> bool:
    """Whether the other side has closed neither earlier nor later; say when it did."""
    print(f"cut after {watch.elapsed:.1f} s of the clock, of which {watch.taken:.1f} s count")
    return watch.elapsed > least and watch.taken < most + MARGIN


def drip(client: Client, data: bytes, pause: float, most: float) -> None:
    began = time.monotonic()
    client.socket.settimeout(pause)
    for at in range(len(data)):
        if not client.offer(data[at : at + 1]) or time.monotonic() - began > most:
            break
        try:
            if not client.socket.recv(1):
                break
        except TimeoutError:
            pass  # still open
        except ConnectionError:
            break


# ---- each phase


def test_headers_that_drip_are_cut(running: Running) -> None:
    """The headers of a request have a deadline, however steadily they come."""
    with others_are_served(running), Client(running.url) as client:
        watch = Stopwatch(running.pid)
        drip(client, request("GET", "/" + "x" * 100), 0.1, 5)
        assert was_cut_within(watch, LIMIT / 2, LIMIT)


def test_a_body_may_be_slow_but_not_slower_than_the_least_rate(tmp_path: Path) -> None:
    """Under a generous body timeout a body of 20 bytes a second is cut after the slow start, one of 20 KB/s is not."""
    with ExitStack() as stack:
        running = stack.enter_context(appliance(tmp_path, http='body_timeout = "60s"'))
        stack.enter_context(others_are_served(running))
        slow, steady = (stack.enter_context(Client(running.url)) for _ in range(2))
        slow.send(request("POST", "/emails", *sending(running, "slow"), "Content-Length: 100000"))
        body = MESSAGE + b" " * 240_000
        steady.send(request("POST", "/emails", *sending(running, "steady"), f"Content-Length: {len(body)}"))

        def drip_slowly() -> bool:
            watch = Stopwatch(running.pid)
            drip(slow, b" " * 1_000, 0.05, 20)
            return was_cut_within(watch, BODY_SLOW_START, BODY_SLOW_START)

        with ThreadPoolExecutor() as pool:
            is_cut_in_time = pool.submit(drip_slowly)
            for at in range(0, len(body), 2_000):
                steady.send(body[at : at + 2_000])
                time.sleep(0.1)
        assert steady.answer().status == 202
    assert is_cut_in_time.result()


# ---- how many


def is_let_in(running: Running, source: str) -> bool:
    """Whether a request on a new connection from that address is answered."""
    with Client(running.url, source=source) as client:
        try:
            client.send(request("GET", "/healthz"))
            return client.answer().status == 200
        except ConnectionError:
            return False


def test_a_full_descriptor_table_is_waited_out(tmp_path: Path) -> None:
    """Where every descriptor is taken, kept connections are served, and new ones again soon after the flood."""
    with appliance(tmp_path, http="max_connections_per_address = 1000") as running, Client(running.url) as kept:
        assert running.process is not None
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (60, 60))
        with ExitStack() as clients:
            flood = [clients.enter_context(Client(running.url)) for _ in range(200)]
            for number in range(20):
                kept.send(request("POST", "/emails", *sending(running, f"kept {number}"), body=MESSAGE))
                assert kept.answer().status == 202
            assert len(flood) == 200
        wait_until(lambda: is_let_in(running, "127.0.0.1"))
        assert running.process.poll() is None
        kept.send(request("GET", "/emails/none", bearer(running)))
        check_error(kept.answer())
        complaints = running.complaints()
        assert complaints
        assert all("no more connections can be opened" in line for line in complaints)
        assert len(complaints) < 20
