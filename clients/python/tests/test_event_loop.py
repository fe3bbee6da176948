"""What `AsyncClient` costs the event loop's own thread, measured in CPU time."""

import json
import time
from typing import Any

import anyio
import pytest

from mail_appliance import Answer, AsyncClient, Attachment, Request
from mail_appliance.configuration import configure
from mail_appliance.planning import send_request

MESSAGE: dict[str, Any] = {"to": "ada@example.net", "subject": "Hello", "text": "Hello"}
LARGE = Attachment("large.bin", bytes(range(256)) * 40_000)  # 10 MB


class Accepting:
    """A transport that accepts everything at no cost."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def send(self, request: Request, timeout: float) -> Answer:  # noqa: ASYNC109 (the protocol's name)
        self.bodies.append(request.body)
        return Answer(202, {}, b'{"id": "msg_1"}')

    async def close(self) -> None:
        pass


def cost_of_encoding() -> float:
    """CPU seconds of this thread for the body of the large message."""
    options: dict[str, Any] = {"username": None, "password": None, "retries": 0, "connect_timeout": 1, "timeout": 1}
    configuration = configure("https://mail.example.com", token="t", environment={}, **options)
    start = time.thread_time()
    send_request(configuration, {"from": "shop@example.com", **MESSAGE, "attachments": [LARGE]}, "k")
    return time.thread_time() - start


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_large_message_is_encoded_in_another_thread(backend: str) -> None:
    """The loop's thread has a small part of the work, and the bytes are the same."""
    transport = Accepting()

    async def main() -> float:
        async with AsyncClient("https://mail.example.com", token="t", transport=transport) as mail:
            await mail.send(from_="shop@example.com", **MESSAGE, attachments=[Attachment("first", bytes(100_000))])
            start = time.thread_time()
            await mail.send(from_="shop@example.com", **MESSAGE, attachments=iter([LARGE]))
            return time.thread_time() - start

    loop = anyio.run(main, backend=backend)
    assert loop < 0.3 * min(cost_of_encoding() for _ in range(3))
    (attachment,) = json.loads(transport.bodies[1])["attachments"]
    assert attachment["filename"] == "large.bin"
    assert len(attachment["content"]) == (len(LARGE.content) + 2) // 3 * 4
