"""A provider's library sends through its door; the message reaches its MX with signatures that verify."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import resend
import trio
from django.core.mail import EmailMultiAlternatives
from postmarker.core import PostmarkClient

from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import World, world
from tests.fakes.anymail import BACKENDS, connection
from tests.fakes.mx import FakeMx

SENDER, RECIPIENT = "shop@example.com", "ada@door.test"


def with_resend(made: World) -> Any:
    resend.api_url, resend.api_key = f"{made.running.url}/resend", made.running.account.send_key
    send: Any = resend.Emails.send
    return send({"from": SENDER, "to": RECIPIENT, "subject": "Hi", "html": "<p>Hi</p>"})["id"]


def with_postmarker(made: World) -> Any:
    client = PostmarkClient(made.running.account.send_key, root_api_url=made.running.url)
    return client.emails.send(From=SENDER, To=RECIPIENT, Subject="Hi", HtmlBody="<p>Hi</p>")["MessageID"]


def with_anymail(provider: str) -> Callable[[World], Any]:
    def send(made: World) -> Any:
        backend = connection(provider, made.running.url, made.running.account.send_key)
        message = EmailMultiAlternatives("Hi", "Hi", SENDER, [RECIPIENT], connection=backend)
        message.attach_alternative("<p>Hi</p>", "text/html")
        assert message.send() == 1
        return message.anymail_status.message_id

    return send


LIBRARIES: dict[str, Callable[[World], Any]] = {"resend": with_resend, "postmarker": with_postmarker}
LIBRARIES |= {f"anymail {provider}": with_anymail(provider) for provider in BACKENDS}


async def test_mail_from_a_door_arrives_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("api_url", "api_key"):
        monkeypatch.setattr(resend, name, "")
    async with world(tmp_path) as made:
        server = FakeMx()
        await made.domain("door.test", server)
        for number, (name, send) in enumerate(LIBRARIES.items(), 1):
            assert await trio.to_thread.run_sync(send, made), name
            await made.until(lambda number=number: len(server.messages) == number)  # type: ignore[misc]
            arrived = server.messages[-1].data
            assert b"<p>Hi</p>" in arrived
            assert signatures(arrived) == 2
            records = published(made)
            assert [verifies(arrived, at, records) for at in range(2)] == [True, True], name
