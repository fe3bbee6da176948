"""A client of the SMTP protocol without a network, and a backend with one credential."""

import base64
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from appliance.concurrency.fair_share import MemoryBudget
from appliance.errors import Refused
from appliance.message.addresses import Address
from appliance.message.limits import RECIPIENTS
from appliance.model.accounts import Caller, CredentialKind
from appliance.store.access import sha256
from appliance.submission.content import (
    Action,
    Backend,
    FindCaller,
    FindRecipient,
    Logins,
    PlainAction,
    Submit,
    any_recipient,
    caller_sender,
)
from appliance.submission.dialogue import Login, Rejected, parse_address
from appliance.submission.protocol import SmtpProtocol

USERNAME, PASSWORD = "smtp_1", "secret"
CALLER = Caller("acc_1", CredentialKind.SMTP, "smtp:smtp_1", True, False, False, frozenset({"example.com"}))
MESSAGE = b"From: a@example.com\r\nSubject: Hi\r\n\r\nHello.\r\n"
MEMORY = 64 * 1024 * 1024  # bytes
NOW = 1_794_744_000_000_000  # 2026-11-15T12:00:00Z


@dataclass
class FakeBackend:
    """One credential, which can be revoked, and a refusal for every message if there is one."""

    logins: dict[str, bytes] = field(default_factory=lambda: {USERNAME: sha256(PASSWORD)})
    refusal: Refused | None = None
    has_place: bool = True  # for one more connection of the credential
    is_known: bool = True  # whether a credential that was found once is known without a further look
    asked: list[str] = field(default_factory=list)

    def known_caller(self, login: Login) -> Caller | None:
        return self.caller(login) if self.is_known else None

    def caller(self, login: Login) -> Caller | None:
        return CALLER if self.logins.get(login.username or "") == login.password_sha256 else None

    def admit(self, caller: Caller) -> bool:
        self.asked.append("admit")
        return self.has_place

    def check(self, caller: Caller) -> None:
        self.asked.append("check")
        if self.refusal is not None:
            raise self.refusal


@dataclass
class Talk:
    protocol: SmtpProtocol
    backend: FakeBackend
    budget: MemoryBudget
    action: Action | None = None
    yields: int = 0  # how often other connections had a turn
    finds: bool = True  # callers at once; else the test does

    def send(self, data: bytes) -> list[bytes]:
        self.action = self.protocol.receive(data)
        while isinstance(self.action, FindRecipient | FindCaller) or self.action is PlainAction.YIELD:
            following: Action | None = None
            if isinstance(self.action, FindCaller):
                if not self.finds:
                    break
                following = self.protocol.caller_found(self.action, self.backend.caller(self.action.login))
            elif isinstance(self.action, FindRecipient):
                self.protocol.recipient_found(_parse(self.action))
            else:
                self.yields += 1
                self.protocol.resume()
            self.action = following or self.protocol.proceed()
        return self.replies()

    def say(self, line: bytes) -> bytes:
        (reply,) = self.send(line + b"\r\n")
        return reply

    def replies(self) -> list[bytes]:
        found, written = [], b"".join(self.protocol.out)
        self.protocol.out.clear()
        reply = b""
        for line in written.splitlines(keepends=True):
            assert line.endswith(b"\r\n")
            reply += line
            if line[3:4] != b"-":
                found.append(reply)
                reply = b""
        assert reply == b""
        return found

    def submitted(self) -> Submit:
        assert isinstance(self.action, Submit)
        return self.action


def _parse(work: FindRecipient) -> Address | Rejected:
    try:
        return parse_address(work.text)
    except Rejected as rejected:
        return rejected


async def _unused(*_: object) -> Any:
    raise AssertionError


def credential(username: str = USERNAME, password: str = PASSWORD) -> bytes:
    return base64.b64encode(f"\0{username}\0{password}".encode())


def talk(*, secure: bool = True, plaintext_login: bool = False, memory: int = MEMORY) -> Talk:
    backend, budget = FakeBackend(), MemoryBudget(memory, owner_part=2)
    logins = Logins(backend.known_caller, backend.admit, _unused, _unused, plaintext=plaintext_login)
    check = partial(caller_sender, backend.check)
    asked = Backend(check, any_recipient, _unused, _unused, RECIPIENTS, logins, dsn=True, now=lambda: NOW)
    protocol = SmtpProtocol("mail.example.com", asked, budget, secure=secure)
    made = Talk(protocol, backend, budget)
    assert made.replies() == [b"220 mail.example.com ESMTP\r\n"]
    return made


def logged_in(memory: int = MEMORY) -> Talk:
    made = talk(memory=memory)
    assert made.say(b"EHLO client.example.com").startswith(b"250-mail.example.com\r\n")
    assert made.say(b"AUTH PLAIN " + credential()) == b"235 2.7.0 Authentication successful\r\n"
    return made


def ready(memory: int = MEMORY) -> Talk:
    made = logged_in(memory)
    assert made.say(b"MAIL FROM:<a@example.com>") == b"250 2.1.0 Sender OK\r\n"
    assert made.say(b"RCPT TO:<ada@example.net>") == b"250 2.1.5 Recipient OK\r\n"
    return made
