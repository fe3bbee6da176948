"""The appliance under test: started once for a run, with its accounts, and what it has stored.

Each scenario sends from an address of its own, by which its messages are found. State is read from the database itself,
so that it is what was committed and not what an answer says.
"""

import base64
import email
import email.policy
import hashlib
import quopri
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import trio

from tests import engines
from tests.running_appliance import Provisioned, Running, add_account, appliance

CREDITS = 1_000_000

_MESSAGES = "SELECT id, subject, status, source, credits_reserved FROM messages WHERE sender LIKE ? ORDER BY id"
_RECIPIENTS = "SELECT address FROM recipients WHERE message_id = ? ORDER BY id"
_KEYS = "SELECT key FROM idempotency_keys WHERE message_id = ?"
_RESERVED = "SELECT COALESCE(SUM(amount), 0) FROM credit_ledger WHERE message_id = ? AND kind = 'reserve'"


@dataclass(frozen=True)
class Server:
    """A running appliance and what scenarios may name of it."""

    running: Running
    known: dict[str, Any]

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.running.url

    def stored(self, sender: str, *, with_content: bool) -> list[dict[str, Any]]:
        """The messages from an address, oldest first; `with_content`: with what their MIME says."""
        data_dir = self.running.data_dir
        rows = engines.rows(data_dir, _MESSAGES, f"%{sender}%")
        messages = [self._described(*row) for row in rows]
        if with_content:
            for message, mime in zip(messages, _mime_of(data_dir, [item["id"] for item in messages]), strict=True):
                message.update(content(mime))
        return messages

    def _described(self, message_id: str, subject: str, status: str, source: str, credits: int) -> dict[str, Any]:
        data_dir = self.running.data_dir
        recipients = engines.rows(data_dir, _RECIPIENTS, message_id)
        ((ledger,),) = engines.rows(data_dir, _RESERVED, message_id)
        return {
            "id": message_id,
            "subject": subject,
            "status": status,
            "source": source,
            "credits": credits,
            "ledger": ledger,
            "recipients": [address for (address,) in recipients],
            "keys": [key for (key,) in engines.rows(data_dir, _KEYS, message_id)],
        }


def _mime_of(data_dir: Path, ids: list[str]) -> list[bytes]:
    async def read() -> list[bytes]:
        async with engines.beside(data_dir) as store:
            return [await store.messages.mime(item) or b"" for item in ids]

    return trio.run(read)


def content(mime: bytes) -> dict[str, Any]:
    """What a reader of a message sees: headers, text, HTML and attachments with the hash of their bytes."""
    bodies, files = {}, []
    for head, data in _leaves(mime):
        kind, disposition = head.get_content_type(), head.get_content_disposition()
        if disposition is None and kind in ("text/plain", "text/html"):
            bodies[kind] = data.decode().replace("\r\n", "\n").removesuffix("\n")
            continue
        files.append(
            {
                "filename": head.get_filename(),
                "content_type": kind,
                "content_id": head["Content-ID"] and str(head["Content-ID"]).strip("<>"),
                "disposition": disposition,
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
    return {
        "headers": {name.lower(): str(value) for name, value in _head(mime)[0].items()},
        "text": bodies.get("text/plain"),
        "html": bodies.get("text/html"),
        "attachments": files,
    }


def _head(mime: bytes) -> tuple[EmailMessage, bytes]:
    """The header of a message or part, and the bytes behind it."""
    head, _, body = mime.partition(b"\r\n\r\n")
    read = email.message_from_bytes(head + b"\r\n\r\n", policy=email.policy.default)
    assert isinstance(read, EmailMessage)
    return read, body


def _leaves(mime: bytes) -> Iterator[tuple[EmailMessage, bytes]]:
    """Each part that is not a multipart, decoded. The standard library's parser takes seconds for 10 MiB."""
    head, body = _head(mime)
    if head.get_content_maintype() == "multipart":
        for part in (b"\r\n" + body).split(b"\r\n--" + (head.get_boundary() or "").encode())[1:-1]:
            yield from _leaves(part.removeprefix(b"\r\n"))
        return
    match str(head["Content-Transfer-Encoding"] or "").lower():
        case "base64":
            yield head, base64.b64decode(body)
        case "quoted-printable":
            yield head, quopri.decodestring(body)
        case _:
            yield head, body


@contextmanager
def started(directory: Path) -> Iterator[Server]:
    """An appliance in the sandbox, with an account to send from and the accounts of some refusals."""
    directory.mkdir(parents=True, exist_ok=True)
    with appliance(directory, credit=CREDITS) as running:
        poor = add_account(running.data_dir, "poor", credit=0, domain="poor.example")
        suspended = add_account(running.data_dir, "suspended", domain="suspended.example")
        other = add_account(running.data_dir, "other", domain="other.example")
        _suspend(running.data_dir, suspended)
        account = running.account
        yield Server(
            running,
            {
                "USERNAME": account.username,
                "PASSWORD": account.password,
                "JWT": running.login()["Authorization"].removeprefix("Bearer "),
                "SEND_KEY": account.send_key,
                "FULL_KEY": account.full_key,
                "TEST_KEY": account.test_key,
                "DOMAIN": account.domain,
                "BASIC": account.basic["Authorization"],
                "POOR": {"key": poor.full_key},
                "SUSPENDED": {"key": suspended.full_key},
                "FOREIGN_ID": _message_of(running, other),
            },
        )


def _suspend(data_dir: Path, account: Provisioned) -> None:
    async def change() -> None:
        async with engines.beside(data_dir) as store:
            await store.accounts.set_suspended(account.account_id, True)

    trio.run(change)


def _message_of(running: Running, account: Provisioned) -> str:
    """The id of a message that another account has sent."""
    with running.client(headers={**account.bearer, "Idempotency-Key": "foreign"}) as client:
        message_fields = {"from": f"a@{account.domain}", "to": "b@example.net", "subject": "Foreign", "text": "Foreign"}
        answer = client.post("/emails", json=message_fields)
        answer.raise_for_status()
        return str(answer.json()["id"])
