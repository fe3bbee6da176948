"""`appliance account delete` beside a running server: the account can do nothing more, and its queued mail goes out."""

from pathlib import Path

import httpx
import pytest
import trio

from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import NO_TLS, PASSWORD, Running, command

pytestmark = pytest.mark.both_engines

LATER = b"451 4.7.1 Greylisted\r\n"


def refused(running: Running, token: dict[str, str]) -> bool:
    account = running.account
    with httpx.Client(base_url=running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
        answers = [client.get("/emails/msg_0", headers=each) for each in (account.bearer, account.basic)]
        answers.append(client.get("/v1/webhook", headers=token))
        answers.append(client.post("/v1/auth/login", json={"email": account.email, "password": PASSWORD}))
    return all(answer.status_code == 401 for answer in answers)


async def test_what_is_queued_goes_out_and_nothing_else_is_possible(tmp_path: Path) -> None:
    """Signed by the key of a domain that is removed; the ledger is as it was."""
    async with world(tmp_path, delays("1h", "1h")) as made:
        server = FakeMx(answers={"RCPT": [LATER, b"250 2.1.5 ok\r\n"]})
        await made.domain("grey.test", server)
        token = await trio.to_thread.run_sync(made.running.login)
        message = await made.send("ada@grey.test")
        await made.tried(message)
        before = made.rows("SELECT id, amount, balance FROM credit_ledger ORDER BY id")
        words = ("account", "delete", "demo", "--yes", "demo")
        await trio.to_thread.run_sync(command, made.running.config_file, *words)
        await made.until(lambda: refused(made.running, token))
        await trio.to_thread.run_sync(command, made.running.config_file, "queue", "retry", "--message", message)
        await made.final(message)
        assert made.recipient(message).status == "delivered"
        assert b"DKIM-Signature:" in server.messages[0].data
        assert made.rows("SELECT id, amount, balance FROM credit_ledger ORDER BY id") == before
