"""Cancelling: what is cancelled does not arrive, and what arrives is paid for, however close the two come."""

from pathlib import Path

import httpx
import pytest
import trio

from tests.e2e.delivery.world import CREDITS, World, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import NO_TLS

pytestmark = pytest.mark.both_engines

MESSAGES = 30


async def cancel(made: World, token: dict[str, str], message_id: str) -> int:
    async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
        while True:
            answer = await client.post(f"/v1/emails/{message_id}/cancel", headers=token)
            if answer.status_code != 503:
                return answer.status_code
            await trio.sleep(int(answer.headers["retry-after"]))  # the account's rows are busy


async def test_a_cancel_right_after_the_send_is_not_free_mail(tmp_path: Path) -> None:
    """Sent and cancelled in one breath, each message is either cancelled and never arrives, or arrives and costs."""
    async with world(tmp_path) as made:
        server, answers = FakeMx(), {}
        await made.domain("one.test", server)
        token = await trio.to_thread.run_sync(made.running.login)

        async def send_and_cancel(number: int) -> None:
            message_id = await made.send(f"r{number}@one.test")
            answers[message_id] = await cancel(made, token, message_id)

        async with trio.open_nursery() as nursery:
            for number in range(MESSAGES):
                nursery.start_soon(send_and_cancel, number)
        await made.final(*answers)
        await made.until(lambda: len(server.messages) >= list(answers.values()).count(409))
        arrived = {address for message in server.messages for address in message.recipients}
        for message_id, answer in answers.items():
            found = made.recipient(message_id)
            told = (answer, found.status, found.billing, found.address in arrived)
            assert told in ((200, "failed", "released", False), (409, "delivered", "settled", True))
        assert made.credits() == CREDITS - len(server.messages)
