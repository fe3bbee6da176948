"""A clock that is set by two days while it runs (threats.md 26): no burst, nothing stuck, nothing given up."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from appliance.intake.login_throttle import PER_KNOWN_NETWORK
from tests.e2e.contract.service import eventually
from tests.e2e.delivery.world import CREDITS, World, delays, world
from tests.e2e.storms.crowd import Crowd
from tests.e2e.storms.wrong_clock import wrong_clock
from tests.fakes.mx import FakeMx, wait_and_say
from tests.fakes.webhook_server import Answer, Post, hooks
from tests.running_appliance import Running, appliance

pytestmark = pytest.mark.sqlite_only  # a node whose clock differs from the database's stops (tests/e2e/nodes)

SLOTS = 3  # of every pool
DEFERRED = 9  # messages
TWO_DAYS = 2 * 86_400  # seconds
MESSAGE = {"from": "a@example.com", "to": "defer@example.net", "subject": "s", "text": "t"}


async def waiting_mail(made: World, name: str, crowd: Crowd) -> list[str]:
    """Messages that were tried once and wait for a minute, and one that is on its way."""
    later = [b"451 4.3.0 later\r\n", b"250 2.1.5 ok\r\n"]
    users = [f"user{number}@{name}.test" for number in range(DEFERRED)]
    slow = FakeMx(answers={".": wait_and_say(1.0, b"250 2.0.0 queued\r\n")})
    await made.domain(f"{name}.test", FakeMx(answers={".": crowd} | {f"RCPT {user}": list(later) for user in users}))
    await made.domain(f"slow-{name}.test", slow)
    deferred = [await made.send(user) for user in users]
    await made.tried(*deferred)
    on_its_way = await made.send(f"ada@slow-{name}.test")
    await made.until(lambda: "DATA" in slow.commands)
    return [*deferred, on_its_way]


def jumps(made: World) -> list[int]:
    return [line["seconds"] for line in made.complaints() if line["event"] == "the clock was set"]


async def test_mail_goes_on(tmp_path: Path) -> None:
    """What waited is tried once more, through its pool's few slots; what is new goes at once; nothing is sent twice."""
    clock, crowd, sent = wrong_clock(tmp_path), Crowd(), list[str]()
    pools = f"[delivery.pools.default]\nconcurrency = {SLOTS}"
    async with world(tmp_path, delays("1m", "1m", "1m"), pools, program=clock.program) as made:
        for number, (name, days) in enumerate((("ahead", 2), ("back", 0)), 1):
            waiting = await waiting_mail(made, name, crowd)
            clock.set_by(days)
            new = await made.send(f"new@{name}.test")
            await made.final(*waiting, new)
            assert [made.recipient(message).attempts for message in waiting] == [2] * DEFERRED + [1]
            assert (new > max(waiting)) is (days > 0)  # ids sort by the clock
            sent += [*waiting, new]
            # It looks at the clock every two seconds; one that was set twice in between was not set, for all it knows.
            await made.until(lambda number=number: len(jumps(made)) == number)  # type: ignore[misc]  # bound as it is now
        assert {made.status(message) for message in sent} == {"delivered"}
        assert len(set(sent)) == 2 * (DEFERRED + 2)
        assert made.credits() == CREDITS - len(sent)
        assert 1 < crowd.most <= SLOTS
        assert jumps(made) == [TWO_DAYS, -TWO_DAYS]


@dataclass
class Grumpy:
    """A receiver that refuses the first post."""

    posts: list[Post] = field(default_factory=list)

    def __call__(self, post: Post) -> Answer:
        self.posts.append(post)
        return (500, b"") if len(self.posts) == 1 else (200, b"")


def send(running: Running, key: str) -> httpx.Response:
    with running.client() as client:
        return client.post("/emails", json=MESSAGE, headers={"Idempotency-Key": key})


def log_in(running: Running, password: str) -> int:
    wanted = {"email": running.account.email, "password": password}
    return httpx.post(f"{running.url}/v1/auth/login", json=wanted, trust_env=False, timeout=30).status_code


def guess(running: Running) -> None:
    threads = [threading.Thread(target=log_in, args=(running, "wrong")) for _ in range(PER_KNOWN_NETWORK[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def status(running: Running, message: str) -> str:
    with running.client() as client:
        return str(client.get(f"/emails/{message}").json()["status"])


def is_logged_in(running: Running, token: dict[str, str]) -> bool:
    return httpx.get(f"{running.url}/v1/account", headers=token, trust_env=False).status_code == 200


def test_everything_else_goes_on(tmp_path: Path) -> None:
    """Simulated mail, posts, keys and logins: set back, nothing waits for two days; set ahead, only tokens expire."""
    clock, receiver = wrong_clock(tmp_path), Grumpy()
    with hooks(tmp_path) as hook:
        hook.answers["/"] = receiver
        webhooks = hook.settings(tmp_path) + 'retry_delays = ["1m"]'
        with appliance(tmp_path, webhooks=webhooks, program=clock.program) as running:
            token = running.login()
            httpx.put(
                f"{running.url}/v1/webhook", json={"url": hook.url("/")}, headers=token, trust_env=False
            ).raise_for_status()
            posted = send(running, "posted").json()["id"]
            eventually(lambda: len(receiver.posts), lambda count: count == 1)
            guess(running)
            assert log_in(running, "wrong") == 429
            deferred = send(running, "deferred")

            clock.set_by(-2)
            eventually(lambda: status(running, deferred.json()["id"]), lambda found: found == "delivered")
            eventually(lambda: len(receiver.posts), lambda count: count == 3)
            assert [post.json()["data"]["email_id"] for post in receiver.posts[:2]].count(posted) >= 1
            again = send(running, "deferred")
            assert again.headers["Idempotent-Replayed"] == "true"
            assert again.json()["id"] == deferred.json()["id"]
            assert is_logged_in(running, token)
            token = running.login()  # no user is locked out

            clock.set_by(2)
            assert not is_logged_in(running, token)
            token = running.login()
            assert is_logged_in(running, token)
            late = send(running, "late").json()["id"]
            eventually(lambda: status(running, late), lambda found: found == "delivered")
            eventually(lambda: len(receiver.posts), lambda count: count == 4)
            assert running.terminate() == 0
