"""What the Python client costs for each send, against a bare http.client and against the load generator of this folder.

    .venv/bin/python -m tests.bench.clients

One thread sends 2 KB text+html messages on one kept connection, by turns with the client and with a bare http.client
that sends a body made beforehand and reads the answer's bytes: to the real appliance, and to a server that gives the
same answer at once, where all that is left is the client's own cost. Then the asynchronous client with 50 tasks, on
asyncio and on Trio, by turns with tests/bench/load.py on 50 connections, to the appliance. The appliance, the server
and each load have a process of their own.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from tests.bench.load import HTML, TEXT, drive, send_requests
from tests.fork_client import ROOT
from tests.running_appliance import appliance

sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from mail_appliance import AsyncClient, Client

TASKS = 50
SENDER, TO, SUBJECT = "Shop <orders@example.com>", "ada@example.net", "On its way"
WARM_UP = 50  # sends
LOOPS = ("asyncio", "trio")

Send = Callable[[], None]


# ---- one thread


def bare(url: str, token: str) -> Send:
    """A send by http.client: the body is made once, the answer's bytes are read and not looked at."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    message = {"from": SENDER, "to": TO, "subject": SUBJECT, "text": TEXT, "html": HTML}
    body = json.dumps(message).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    run, number = time.time_ns(), count()

    def send() -> None:
        connection.request("POST", "/emails", body, {**headers, "Idempotency-Key": f"{run}-{next(number)}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 202, answer.status

    return send


def by_client(url: str, token: str) -> Send:
    mail = Client(url, token=token, retries=0)

    def send() -> None:
        mail.send(from_=SENDER, to=TO, subject=SUBJECT, text=TEXT, html=HTML)

    return send


def seconds_of(send: Send) -> float:
    began = time.perf_counter()
    send()
    return time.perf_counter() - began


def compare(name: str, url: str, token: str, sends: int) -> float:
    """The client's median time against the bare one's. They take turns after every send: what else the machine does
    meets both.
    """
    sides = bare(url, token), by_client(url, token)
    for _ in range(WARM_UP):
        for send in sides:
            send()
    times = [tuple(map(seconds_of, sides)) for _ in range(sends)]
    theirs, ours = (float(statistics.median(side)) for side in zip(*times, strict=True))
    print(f"{name:<26} http.client {theirs * 1e6:>6.0f} µs   client {ours * 1e6:>6.0f} µs   ratio {ours / theirs:.2f}")
    return ours / theirs


# ---- a server that answers at once

ANSWER = json.dumps(
    {
        "id": "msg_19811c37dea64357d92fc2c378b44320",
        "status": "queued",
        "source": "api",
        "request_id": "req_19811c37dea64357d92fc2c378b44320",
        "from": SENDER,
        "to": [TO],
        "cc": [],
        "bcc": [],
        "subject": SUBJECT,
        "billing_status": "reserved",
        "recipient_count": 1,
        "credits_reserved": 1,
        "tags": [],
        "attachments": [],
    }
).encode()
HEADERS = (
    "content-type: application/json",
    f"content-length: {len(ANSWER)}",
    "x-request-id: req_19811c37dea64357d92fc2c378b44320",
    "cache-control: no-store",
    "x-content-type-options: nosniff",
    "content-security-policy: default-src 'none'",
    "referrer-policy: no-referrer",
    "cross-origin-opener-policy: same-origin",
    "date: Mon, 16 Nov 2026 12:00:00 GMT",
)
WHOLE = "\r\n".join(["HTTP/1.1 202 ", *HEADERS, "\r\n"]).encode() + ANSWER


def serve() -> None:
    """Print the port, then answer every request of every connection; each comes in one piece or a few."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer_all, args=(connection,), daemon=True).start()


def answer_all(connection: socket.socket) -> None:
    received = b""
    while data := connection.recv(65536):
        received += data
        head, end, body = received.partition(b"\r\n\r\n")
        lower = head.lower()
        length = int(lower.partition(b"content-length:")[2].split(b"\r\n", 1)[0]) if end else 0
        if end and len(body) >= length:
            connection.sendall(WHOLE)
            received = b""


@contextmanager
def prompt_server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.clients", "--serve"], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


# ---- many tasks


async def send_in_tasks(url: str, token: str, seconds: float) -> float:
    sent = 0

    async def task(mail: AsyncClient, end: float) -> None:
        nonlocal sent
        while time.perf_counter() < end:
            await mail.send(from_=SENDER, to=TO, subject=SUBJECT, text=TEXT, html=HTML)
            sent += 1

    async with AsyncClient(url, token=token, retries=0) as mail:
        await mail.send(from_=SENDER, to=TO, subject=SUBJECT, text=TEXT, html=HTML)
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(TASKS):
                group.start_soon(task, mail, began + seconds)
        return sent / (time.perf_counter() - began)


def load_on_connections(url: str, token: str, seconds: float) -> float:
    """Answers a second of tests/bench/load.py on as many connections."""
    requests = send_requests(f"Bearer {token}", f"{time.time_ns()}")
    load = drive("127.0.0.1", urlsplit(url).port or 80, TASKS, seconds, requests)
    assert list(load.statuses) == [202], load.statuses
    return load.rate


def run_loads(name: str, url: str, token: str) -> None:
    """Answer each line of the input, which is a number of seconds, with the rate of a load of that length."""
    for line in sys.stdin:
        if name == "loader":
            rate = load_on_connections(url, token, float(line))
        else:
            rate = anyio.run(send_in_tasks, url, token, float(line), backend=name)
        print(rate, flush=True)


def rate_of(process: subprocess.Popen[str], seconds: float) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    print(seconds, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def compare_rates(url: str, token: str, *, rounds: int, seconds: float) -> dict[str, float]:
    """The median over the rounds of each loop's rate against the loader's, which is next to it."""
    rates: dict[str, list[float]] = {name: [] for name in ("loader", *LOOPS)}
    with ExitStack() as stack:
        processes = {}
        for name in rates:
            words = [sys.executable, "-m", "tests.bench.clients", "--load", name, url, token]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            processes[name] = stack.enter_context(process)
            rate_of(process, 0.2)
        for _ in range(rounds):
            for name, process in processes.items():
                rates[name].append(rate_of(process, seconds))
    print(f"{'loader':<26} {statistics.median(rates['loader']):>6.0f} /s")
    ratios = {}
    for loop in LOOPS:
        pairs = zip(rates[loop], rates["loader"], strict=True)
        ratios[loop] = statistics.median(mine / other for mine, other in pairs)
        print(f"{f'AsyncClient, {loop}':<26} {statistics.median(rates[loop]):>6.0f} /s   ratio {ratios[loop]:.2f}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="with many tasks")
    parser.add_argument("--sends", type=int, default=1000, help="of each side, by one thread")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side in a round")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    if options.load:
        return run_loads(*options.load)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prompt = stack.enter_context(prompt_server())
        running = stack.enter_context(appliance(directory, fresh=True, credit=None))
        token = running.account.send_key
        real = compare("one thread, appliance", running.url, token, options.sends)
        own = compare("one thread, prompt server", prompt, token, options.sends)
        ratios = compare_rates(running.url, token, rounds=options.rounds, seconds=options.seconds)
    print(f"\ntime of a send to the appliance, against http.client:     {real:.2f} (wanted: at most 1.5)")
    print(f"time of a send to the prompt server, against http.client: {own:.2f} (wanted: at most 1.5)")
    print(f"sends a second with {TASKS} tasks, against the loader:        {ratios['asyncio']:.2f} (wanted: 0.8)")
    return None


if __name__ == "__main__":
    main()
