"""A hostile client in a process of its own: one input, so many times a second, until it is ended.

python -m tests.bench.attacker NAME      # with a line of JSON on standard input: see `described`
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import BoundedSemaphore, Thread

from appliance.environment import Environment
from tests.e2e.feedback.feedback import NAME, return_path
from tests.e2e.hostile_inputs import HEADS, SENDERS, STRANGERS, SUBMITTERS, Input, Target
from tests.e2e.raw import Client, request
from tests.e2e.submission.client import Raw
from tests.inbound.bounces import bounce
from tests.running_appliance import Provisioned, Running

RECEIVING = "in.example.com"  # a domain that receives mail
HELD = 300  # connections that promise a body, from three addresses
HOLD = 30.0  # seconds for which each waits
FLOOD_MAILS = 50  # on each connection
JSON = "Content-Type: application/json"


@dataclass(frozen=True)
class Attack:
    """An input, how often a second it is begun, and how many may be on their way."""

    send: Input
    rate: float
    at_once: int = 16


def promise(target: Target, number: int) -> None:
    """Announce a body, send none, and wait until the connection is closed."""
    head = request("POST", "/v1/auth/login", "Content-Type: application/json", "Content-Length: 65536")
    with Client(target.running.url, source=f"127.0.0.{100 + number % 3}", timeout=HOLD) as client:
        client.offer(head)
        client.rest()


def flood(address: Callable[[Target], str]) -> Input:
    """Bounces to one address, one after the other on a connection, until the server has had enough."""

    def send(target: Target, _: int) -> None:
        envelope = b"MAIL FROM:<>\r\nRCPT TO:<%b>\r\nDATA\r\n" % address(target).encode()
        with Raw(target.running, "inbound") as client:
            client.say(b"EHLO mx.example.net")
            for _ in range(FLOOD_MAILS):
                client.send(envelope)
                codes = [client.reply()[:3] for _ in range(3)]
                if codes[-1] == b"354":
                    client.send(bounce("ada@example.net") + b".\r\n")
                    client.reply()
                else:
                    client.say(b"RSET")

    return send


ONE_RECIPIENT = Environment().identifier("rcp")


def send_by_eight_keys(target: Target, number: int) -> None:
    recipients = [f"user{number}-{index}@example.net" for index in range(50)]
    body = json.dumps({"from": "a@example.com", "to": recipients, "subject": "s", "text": "t"}).encode()
    key = f"Authorization: Bearer {target.keys[number % len(target.keys)]}"
    target.send(request("POST", "/emails", key, f"Idempotency-Key: {number}", JSON, body=body))


def resend_a_delivered_message(target: Target, number: int) -> None:
    """Answered 409: nothing of it bounced or failed."""
    target.v1("POST", f"/v1/emails/{target.delivered}/resend", b"{}")


# As often as it took to slow an honest client down to a second before these were mended, or more often.
ATTACKS = {
    "300 bodies promised, none sent": Attack(promise, 100, HELD),
    "64 KB of header lines": Attack(HEADS["64 KB of tiny header lines"], 20),
    "65 KB login with a JSON fault": Attack(STRANGERS["login: a JSON fault behind many keys"], 25),
    "template that becomes 10 MiB": Attack(SENDERS["a template that becomes 10 MiB"], 5),
    "1,000 pipelined RCPT with IDN": Attack(SUBMITTERS["1,000 pipelined RCPT with IDN"], 2),
    "60 IDN addresses": Attack(SENDERS["60 IDN addresses"], 25),
    "262 KB of JSON with a fault": Attack(SENDERS["262 KB of JSON with a fault"], 5),
    "262 KB of tiny JSON values": Attack(SENDERS["262 KB of tiny values"], 5),
    "100 headers of one long word": Attack(SENDERS["100 headers of one long word"], 10),
    "listing of 100 messages": Attack(SENDERS["a list of the newest 100 messages"], 170),
    "bounces to one return path": Attack(flood(lambda target: return_path(target.running, ONE_RECIPIENT)), 20),
    "mail to one report address": Attack(flood(lambda _: f"dmarc@{NAME}"), 20),
    "mail to one receiving address": Attack(flood(lambda _: f"support@{RECEIVING}"), 20),
    "10 MiB of dots by SMTP": Attack(SUBMITTERS["10 MiB of dots"], 1),
    "10 MiB of boundaries by SMTP": Attack(SUBMITTERS["10 MiB of boundaries"], 1),
    "50 recipients, by eight keys": Attack(send_by_eight_keys, 40, 8),
    "resends, answered 409": Attack(resend_a_delivered_message, 100),
}


def described(running: Running, account: Provisioned) -> str:
    listeners = {"url": running.url, "smtp": running.smtp, "inbound": running.inbound}
    return json.dumps({**listeners, "data_dir": str(running.data_dir), "account": asdict(account)})


def _target(told: str) -> Target:
    known = json.loads(told)
    directory = Path(known["data_dir"])
    running = Running(directory, directory, directory, Provisioned(**known["account"]), directory)
    running.url, running.smtp, running.inbound = known["url"], known["smtp"], known["inbound"]
    return Target(running)


def main() -> None:
    attack, target = ATTACKS[sys.argv[1]], _target(sys.stdin.readline())
    number = time.time_ns() // 1_000_000 % 10**9  # other numbers than those of the last run
    free = BoundedSemaphore(attack.at_once)

    def once(number: int, done: Callable[[], None]) -> None:
        with suppress(Exception):  # refused or cut off: that is the server's good right
            attack.send(target, number)
        done()

    if attack.at_once <= HELD // 2:
        once(number, lambda: None)  # makes what it needs, a template for example
    print("attacking", flush=True)
    while True:
        number += 1
        due = time.monotonic() + 1 / attack.rate
        free.acquire()
        Thread(target=once, args=(number, free.release), daemon=True).start()
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
