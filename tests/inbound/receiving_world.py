"""An account that receives mail, without sockets: the listener's dialogue, the receiver, a zone, and a webhook."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import trio

from appliance.concurrency.fair_share import MemoryBudget, Workers
from appliance.environment import Environment
from appliance.errors import Refused
from appliance.feedback.return_path import ReturnPaths
from appliance.inbound.listener import FeedbackListener
from appliance.inbound.receiver import Receiver
from appliance.keys.received_links import ReceivedLinks
from appliance.model.received import ReceivedMessage
from appliance.store import Store, open_store
from appliance.submission.content import FindRecipient, Submit
from appliance.submission.protocol import SmtpProtocol
from tests import stored_mail
from tests.fakes.dns import Zone, ZoneResolver

KEY = bytes(32)
DOMAIN = "in.example.com"
CLIENT = "192.0.2.1"
MAIL = b"From: Ada <ada@example.net>\r\nTo: support@in.example.com\r\nSubject: Hello\r\n\r\nHow are you?\r\n"


@dataclass
class Intake:
    """What the listener needs of the intake: threads, free disk, and a quota."""

    workers: Workers = field(default_factory=Workers)
    may_store: int | None = None

    @property
    def quota(self) -> "Intake":
        return self

    def bytes(self) -> int | None:
        return self.may_store

    def check_disk(self) -> None:
        """There is enough."""


@dataclass
class Receiving:
    store: Store
    env: Environment
    account_id: str
    listener: FeedbackListener
    receiver: Receiver
    intake: Intake
    links: ReceivedLinks
    resolver: ZoneResolver

    def session(self, client: str = CLIENT, *, secure: bool = False) -> SmtpProtocol:
        backend = self.listener.backend_for(client, lambda _: False)
        protocol = SmtpProtocol("mail.example.com", backend, MemoryBudget(2**26, owner_part=2), secure=secure)
        protocol.out.clear()
        return protocol

    async def say(self, session: SmtpProtocol, data: bytes) -> list[str]:
        """The last lines of the replies."""
        action = session.receive(data)
        while action is not None:
            if isinstance(action, FindRecipient):
                session.recipient_found(await session.backend.find_recipient(action))
            elif isinstance(action, Submit):
                try:
                    session.submitted(await session.backend.submit(action))
                except Refused as refused:
                    session.submitted(refused)
            else:
                session.resume()
            action = session.proceed()
        lines = b"".join(session.out).decode().splitlines()
        session.out.clear()
        return [line for line in lines if line[3:4] != "-"]

    async def send(
        self, *recipients: str, mime: bytes = MAIL, sender: str = "ada@example.net", client: str = CLIENT
    ) -> list[str]:
        """Send one mail; the replies to RCPT, and the last one."""
        session = self.session(client)
        await self.say(session, f"EHLO mx.example.net\r\nMAIL FROM:<{sender}>\r\n".encode())
        replies = [(await self.say(session, f"RCPT TO:<{recipient}>\r\n".encode()))[-1] for recipient in recipients]
        if any(reply.startswith("250") for reply in replies):
            replies += (await self.say(session, b"DATA\r\n" + mime.replace(b"\r\n.", b"\r\n..") + b".\r\n"))[-1:]
        return replies

    async def settle(self) -> None:
        """Check all queued mail."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.receiver.run)
            with trio.fail_after(30):
                while await self.rows("SELECT 1 FROM feedback_mail WHERE turn <> ''"):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def received(self, account_id: str = "") -> list[ReceivedMessage]:
        return await self.store.received.page(account_id or self.account_id, None, 100)

    async def events(self) -> list[dict[str, Any]]:
        return [json.loads(bytes(body)) for (body,) in await self.rows("SELECT request_body FROM webhook_deliveries")]

    async def stored_bytes(self) -> int:
        return int((await self.store.accounts.find(self.account_id)).stored_bytes)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        return await self.store.engine.rows(query, {})


@asynccontextmanager
async def receiving(
    directory: Path, zone: Zone | None = None, env: Environment | None = None
) -> AsyncIterator[Receiving]:
    env = env or Environment()
    async with open_store(directory, env, inline=True) as store:
        account_id = await stored_mail.account(store)
        await store.access.add_domain(account_id, "example.com", usable=True)
        await stored_mail.webhook(store, env, account_id, KEY)
        intake, links = Intake(), ReceivedLinks(KEY, "https://mail.example.com")
        listener = FeedbackListener(env, store, cast(Any, intake), ReturnPaths(KEY), "mail.example.com")
        resolver = ZoneResolver(zone or {})
        receiver = Receiver(store, env, resolver, links)
        yield Receiving(store, env, account_id, listener, receiver, intake, links, resolver)
