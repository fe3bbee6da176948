"""Hostile peers on real sockets: clients, mail servers and receivers that send changed bytes to the running program.

It must not end, answer 500, show or log the text of an exception, or grow; then SIGTERM ends it in order. And the 500
clients that are slow in every way that there is, with an honest one beside them.
"""

import random
import re
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import trio

from tests.bench.honest_client import WANTED, Round, honest
from tests.e2e.delivery.world import World, delays, world
from tests.e2e.feedback.feedback import LISTENS, return_path
from tests.e2e.raw import check_error
from tests.e2e.submission.client import Raw
from tests.e2e.test_no_request_kills_the_process import Door, answers_to, requests
from tests.fakes.receiver import AUTHORITY, HERE, HOST, Receiver, Tls, read_request
from tests.feedback.mutated_mail import MAILS
from tests.feedback.mutations import mutated
from tests.running_appliance import PASSWORD, Provisioned, Running, add_account, appliance
from tests.torture.streams import ANSWER_PIECES, ANSWERS, COMMAND_PIECES, REPLY_PIECES, TRANSACTIONS

Told = Callable[[str], None]

PATIENCE = 0.5  # seconds that a peer waits for more
GROWTH = 100 * 1024 * 1024  # bytes of memory, after a first part of it all
CUSTOMERS = 8  # with a webhook each
DOMAINS = 40  # with a mail server each
SERVER = (
    b"220 mx.example ESMTP\r\n", b"250-mx.example\r\n250-PIPELINING\r\n250 8BITMIME\r\n",
    b"250 2.1.0 ok\r\n250 2.1.5 ok\r\n354 go on\r\n", b"250 2.0.0 queued\r\n", b"221 2.0.0 bye\r\n",
)  # fmt: skip


class Hostile:
    """The peers, how much each kind has sent, and what was wrong with the answers."""

    def __init__(self, made: World, seed: int) -> None:
        self.made, self.seed = made, seed
        self.sent: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.accepted: list[str] = []
        self._lock = threading.Lock()

    def number(self, kind: str) -> int:
        with self._lock:
            self.sent[kind] += 1
            return self.seed * 10**9 + self.sent[kind]

    def note(self, kind: str, data: bytes, text: str) -> None:
        """Something that must not be."""
        self.wrong.append(f"{kind} on sockets, seed {self.seed}: {text[:400]}; input {data[:600]!r}")

    # ---- clients; each in a thread

    def http(self, count: int) -> None:
        door = Door(self.made.running, None)
        for _ in range(count):
            data = requests(random.Random(self.number("http")), self.made.running)
            try:
                for answer in answers_to(door, data):
                    if answer.status >= 400:
                        check_error(answer, head=answer.body == b"")
                    if (answer.status >= 500 and answer.status != 503) or b"Traceback" in answer.body:
                        self.note("http", data, f"answered {answer.status} {answer.body!r}")
            except (AssertionError, OSError, ValueError) as error:
                self.note("http", data, f"{type(error).__name__}: {error}")

    def submission(self, count: int) -> None:
        for _ in range(count):
            number = self.number("submission")
            data = mutated(random.Random(number).choice(TRANSACTIONS), number, COMMAND_PIECES)
            try:
                with Raw(self.made.running, "smtps") as client:
                    client.log_in()
                    self._talk("submission", client, data)
            except (AssertionError, OSError) as error:
                self.note("submission", data, f"{type(error).__name__}: {error}")

    def feedback(self, count: int) -> None:
        path = return_path(self.made.running, "rcp_19811c37dea64357d92fc2c378b44320").encode()
        for _ in range(count):
            number = self.number("feedback")
            mail = random.Random(number).choice(list(MAILS.values()))
            # Mostly the mail is changed, so that it is taken and read.
            if number % 4:
                mail = mutated(mail, number).replace(b"\r\n", b"\n").replace(b"\r", b"").replace(b"\n", b"\r\n")
            data = b"MAIL FROM:<>\r\nRCPT TO:<%s>\r\nDATA\r\n%s\r\n.\r\nQUIT\r\n" % (
                path,
                mail.replace(b"\n.", b"\n.."),
            )
            if number % 4 == 0:
                data = mutated(data, number, COMMAND_PIECES)
            try:
                with Raw(self.made.running, "inbound") as client:
                    client.say(b"EHLO mx.example.net")
                    self._talk("feedback", client, data)
            except (AssertionError, OSError) as error:
                self.note("feedback", data, f"{type(error).__name__}: {error}")

    def _talk(self, kind: str, client: Raw, data: bytes) -> None:
        with suppress(OSError):  # closed by the server, which has said why
            client.send(data + b"\r\n.\r\nQUIT\r\n")
        client.socket.settimeout(PATIENCE)
        while reply := self._reply(client):
            if not re.match(rb"[2-5][0-9]{2}[ -]", reply) or b"Traceback" in reply or b"Internal" in reply:
                self.note(kind, data, f"replied {reply!r}")

    @staticmethod
    def _reply(client: Raw) -> bytes:
        """The next one; none if the server waits for more, as for the rest of a chunk."""
        try:
            return client.reply()
        except TimeoutError:
            return b""

    def mail(self, accounts: list[Provisioned], count: int) -> None:
        """Honest mail: real messages for hostile mail servers, simulated ones whose events go to hostile receivers."""
        with self.made.running.client() as client:
            for number in range(count):
                account = accounts[number % len(accounts)]
                for key, to in (
                    (account.send_key, f"u{number}@h{number % DOMAINS}.test"),
                    (account.test_key, "a@b.test"),
                ):
                    body = {"from": f"a@{account.domain}", "to": to, "subject": "s", "text": "t"}
                    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f"{to} {number}"}
                    answer = client.post("/emails", json=body, headers=headers)
                    if answer.status_code == 202:
                        self.accepted.append(answer.json()["id"])
                    elif answer.status_code not in (429, 503):
                        self.note("mail", answer.content, f"answered {answer.status_code}")

    # ---- servers

    async def remote_server(self, stream: trio.SocketStream) -> None:
        number = self.number("replies")
        chance = random.Random(number)
        hostile = chance.sample(range(len(SERVER)), chance.randint(1, 2))
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(PATIENCE):
            for step, reply in enumerate(SERVER):
                await stream.send_all(mutated(reply, number + step, REPLY_PIECES) if step in hostile else reply)
                if not await stream.receive_some(65_536):
                    break
        await trio.aclose_forcefully(stream)

    async def answer(self, receiver: Receiver, stream: Tls) -> None:
        while await read_request(receiver, stream):
            number = self.number("answers")
            good = random.Random(number).choice(ANSWERS)
            await stream.send_all(mutated(good, number, ANSWER_PIECES) if number % 4 else good)
            if number % 3:
                await stream.aclose()


def memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) * 1024


async def _run(directory: Path, count: int, seed: int, told: Told) -> tuple[int, list[str]]:
    AUTHORITY.cert_pem.write_to_path(directory / "ca.pem")
    async with trio.open_nursery() as nursery:
        peers: Hostile | None = None

        async def answer(receiver: Receiver, stream: Tls) -> None:
            assert peers is not None
            await peers.answer(receiver, stream)

        port = await nursery.start(Receiver(answer).run)
        webhooks = f'[webhooks]\nallow_networks = ["127.0.0.0/8"]\nports = [{port}]\nca_file = "{directory / "ca.pem"}"'
        webhooks += '\nretry_delays = ["1s", "1s"]'
        async with world(directory, delays("1s", "2s"), LISTENS, webhooks, fresh=True) as made:
            peers = Hostile(made, seed)
            made.dns.zone.update(HERE)
            for number in range(DOMAINS):
                made.publish(f"h{number}.test", MX=[f"10 mx{number}.h{number}.test."])
                made.publish(f"mx{number}.h{number}.test", A=[f"127.0.3.{number + 1}"])
            listeners = await trio.open_tcp_listeners(made.mx_port, host="0.0.0.0")
            nursery.start_soon(trio.serve_listeners, peers.remote_server, listeners)
            accounts = await trio.to_thread.run_sync(_customers, made.running, port)
            before = 0
            for part in (0.2, 0.8):  # what it takes to begin with is no growth
                told(f"on sockets: {sum(peers.sent.values()):,} inputs")
                async with trio.open_nursery() as clients:
                    for work, share in (
                        (peers.http, 0.25),
                        (peers.http, 0.25),
                        (peers.submission, 0.15),
                        (peers.feedback, 0.2),
                    ):
                        clients.start_soon(trio.to_thread.run_sync, work, int(count * share * part))
                    clients.start_soon(trio.to_thread.run_sync, peers.mail, accounts, int(count * 0.1 * part))
                before = before or memory(made.running.pid)
            growth = memory(made.running.pid) - before
            if growth > GROWTH:
                peers.wrong.append(f"on sockets, seed {seed}: memory grew by {growth // 2**20} MiB")
            peers.wrong += await trio.to_thread.run_sync(_after, made, peers)
        nursery.cancel_scope.cancel()
    return sum(peers.sent.values()), peers.wrong


def _customers(running: Running, port: int) -> list[Provisioned]:
    accounts = [add_account(running.data_dir, f"c{number}", domain=f"c{number}.example") for number in range(CUSTOMERS)]
    with running.client() as client:
        for account in accounts:
            login = client.post("/v1/auth/login", json={"email": account.email, "password": PASSWORD})
            headers = {"Authorization": f"Bearer {login.json()['token']}"}
            client.put("/v1/webhook", json={"url": f"https://{HOST}:{port}/"}, headers=headers).raise_for_status()
    return accounts


def _after(made: World, peers: Hostile) -> list[str]:
    wrong, running, where = [], made.running, f"on sockets, seed {peers.seed}: "
    if not running.is_alive():
        return [f"{where}the program ended: {running.log_file.read_text()[-2_000:]}"]
    with running.client() as client:
        if (status := client.get("/healthz").status_code) != 200:
            wrong.append(f"{where}/healthz answers {status}")
    if (code := running.terminate()) != 0:
        wrong.append(f"{where}SIGTERM ended it with {code}")
    wrong += [
        f"{where}logged {line[:1_000]}"
        for line in running.complaints()
        if "Traceback" in line or '"error"' in line[:200]
    ]
    stored = {message for (message,) in made.rows("SELECT id FROM messages")}
    if lost := set(peers.accepted) - stored:
        wrong.append(f"{where}{len(lost)} acknowledged messages are lost")
    return wrong


def run(count: int, seed: int, told: Told) -> tuple[int, list[str]]:
    """About so many inputs, by all peers together; how many, and what was wrong."""
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        return trio.run(_run, Path(directory), count, seed, told)


# ---- slow clients

SLOW = 500
FROM_ADDRESSES = 20
TICK = 0.5  # seconds between two bytes of each
BEGINNINGS = (
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ",
    b"POST /v1/auth/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n",
    b"POST /emails HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 20,  # and does not read
    b"",
)


@contextmanager
def slow_clients(running: Running) -> Iterator[Counter[str]]:
    """So many connections that send a byte now and then and read nothing; each that is closed is opened again."""
    ending, seen = threading.Event(), Counter[str]()
    submission = urlsplit(next(url for url in running.smtp if url.startswith("smtp:")))
    doors = [(urlsplit(running.url), begin) for begin in BEGINNINGS] + [
        (submission, b"EHLO a\r\nMAIL"),
        (submission, b""),
    ]

    def opened(number: int) -> socket.socket | None:
        parts, begin = doors[number % len(doors)]
        client = socket.socket()
        client.settimeout(0.2)
        try:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            client.bind((f"127.0.1.{number % FROM_ADDRESSES + 1}", 0))
            client.connect((parts.hostname, parts.port))
            client.setblocking(False)
            client.send(begin)
        except OSError:
            client.close()
            seen["refused"] += 1
            return None
        seen["opened"] += 1
        return client

    def drip() -> None:
        clients: list[socket.socket | None] = [None] * SLOW
        while not ending.is_set():
            due = time.monotonic() + TICK
            for number, client in enumerate(clients):
                if client is None:
                    clients[number] = opened(number)
                    continue
                try:
                    client.send(b"1")
                    if not client.recv(1, socket.MSG_PEEK):
                        raise ConnectionResetError
                except BlockingIOError:
                    pass
                except OSError:
                    client.close()
                    clients[number] = None
                    seen["cut"] += 1
                if ending.is_set():
                    break
            seen["open"] = sum(client is not None for client in clients)
            ending.wait(max(0.0, due - time.monotonic()))
        for each in clients:
            if each is not None:
                each.close()

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while seen["open"] < SLOW * 0.9 and time.monotonic() < deadline:
            time.sleep(0.05)
        yield seen
    finally:
        ending.set()
        thread.join()


# A round has 50 requests, so its p99 is the slowest one: it meets the 500 connections that are opened at once.
STORM = 500.0  # milliseconds


def beside_slow_clients(rounds: int, seconds: float, told: Told) -> tuple[str, list[str]]:
    """The honest client alone and beside them in turns: its p99 by the medians; more rounds before it is called bad."""
    alone: list[Round] = []
    beside: list[Round] = []
    wrong = []
    most = 0
    with (
        tempfile.TemporaryDirectory(prefix="torture-") as directory,
        appliance(Path(directory), credit=10**9, fresh=True) as running,
    ):
        account = add_account(running.data_dir, "honest", credit=10**9)
        honest(running, account, 2)
        for turn in range(3 * rounds):
            told(f"500 slow clients, round {turn + 1}")
            if (quiet := honest(running, account, seconds)) is None:
                return "", ["the honest client was cut off alone"]
            alone.append(quiet)
            with slow_clients(running) as seen:
                busy = honest(running, account, seconds)
                most = max(most, seen["open"])
            if busy is None:
                return "", ["the honest client was cut off beside 500 slow ones"]
            beside.append(busy)
            ratio = statistics.median(each["p99_ms"] for each in beside) / statistics.median(
                each["p99_ms"] for each in alone
            )
            quickest = min(each["p99_ms"] for each in beside)
            held = ratio <= WANTED or quickest <= STORM
            if turn + 1 >= rounds and held:
                break
        if most < SLOW * 0.5:
            wrong.append(f"only {most} slow clients were connected at once: {dict(seen)}")
        if not held:
            wrong.append(
                f"beside {most} slow clients the honest p99 is {ratio:.1f} times that alone (at most {WANTED}),"
                f" at best {quickest:.0f} ms (at most {STORM:.0f})"
            )
        if running.terminate() != 0:
            wrong.append("SIGTERM beside slow clients did not end it with 0")
        wrong += [f"beside slow clients it logged {line[:500]}" for line in running.complaints() if "Traceback" in line]
    return f"beside {most} slow clients p99 x {ratio:.1f}, at best {quickest:.0f} ms", wrong
