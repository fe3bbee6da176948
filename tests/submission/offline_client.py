"""A dialogue without a network: who may log in, and what one says to it."""

import base64
from dataclasses import dataclass, field

from appliance.errors import Refused
from appliance.message.addresses import Address
from appliance.model.mail import Caller, CredentialKind
from appliance.store.access import sha256
from appliance.submission.actions import Action, ReadRecipient, Submit, Yield
from appliance.submission.content import Room
from appliance.submission.intake import BadAddress, address
from appliance.submission.login import Login
from appliance.submission.protocol import Dialogue

USERNAME, PASSWORD = "smtp_1", "secret"
CALLER = Caller("acc_1", CredentialKind.SMTP, "smtp:smtp_1", True, False, False, frozenset({"example.com"}))
MESSAGE = b"From: a@example.com\r\nSubject: Hi\r\n\r\nHello.\r\n"
ROOM = 64 * 1024 * 1024  # bytes


@dataclass
class FakeHouse:
    """One credential, which can be revoked, and a refusal for every message if there is one."""

    logins: dict[str, bytes] = field(default_factory=lambda: {USERNAME: sha256(PASSWORD)})
    refusal: Refused | None = None
    has_room: bool = True  # for one more connection of the credential

    def caller(self, login: Login) -> Caller | None:
        """Who logs in so."""
        return CALLER if self.logins.get(login.username) == login.password_sha256 else None

    def admit(self, caller: Caller) -> bool:
        """Whether its credential may have one more connection."""
        return self.has_room

    def check(self, caller: Caller) -> None:
        """Whether it may send."""
        if self.refusal is not None:
            raise self.refusal


@dataclass
class Talk:
    """A dialogue, and how to speak with it."""

    dialogue: Dialogue
    house: FakeHouse
    room: Room
    action: Action | None = None
    yields: int = 0  # how often the dialogue let other connections have a turn

    def send(self, data: bytes) -> list[bytes]:
        """Bytes in; the replies, one by one, each with all its lines."""
        self.action = self.dialogue.receive(data)
        while isinstance(self.action, ReadRecipient | Yield):
            if isinstance(self.action, Yield):
                self.yields += 1
                self.dialogue.go_on()
            else:
                self.dialogue.recipient_read(_read(self.action))
            self.action = self.dialogue.proceed()
        return self.replies()

    def say(self, line: bytes) -> bytes:
        """One line in, one reply out."""
        (reply,) = self.send(line + b"\r\n")
        return reply

    def replies(self) -> list[bytes]:
        """What is to be written."""
        found, written = [], b"".join(self.dialogue.out)
        self.dialogue.out.clear()
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
        """The message that is to be stored."""
        assert isinstance(self.action, Submit)
        return self.action


def _read(work: ReadRecipient) -> Address | BadAddress:
    try:
        return address(work.text, "RCPT TO")
    except BadAddress as bad:
        return bad


def credential(username: str = USERNAME, password: str = PASSWORD) -> bytes:
    """What AUTH PLAIN is given."""
    return base64.b64encode(f"\0{username}\0{password}".encode())


def talk(*, secure: bool = True, plaintext_login: bool = False, room: int = ROOM) -> Talk:
    """A dialogue that has greeted."""
    house, memory = FakeHouse(), Room(room)
    dialogue = Dialogue("mail.example.com", house, memory, secure=secure, plaintext_login=plaintext_login)
    dialogue.greet()
    made = Talk(dialogue, house, memory)
    assert made.replies() == [b"220 mail.example.com ESMTP\r\n"]
    return made


def logged_in(room: int = ROOM) -> Talk:
    """One that may send."""
    made = talk(room=room)
    assert made.say(b"EHLO client.example.com").startswith(b"250-mail.example.com\r\n")
    assert made.say(b"AUTH PLAIN " + credential()) == b"235 2.7.0 Authentication successful\r\n"
    return made


def ready(room: int = ROOM) -> Talk:
    """One that has a sender and a recipient."""
    made = logged_in(room)
    assert made.say(b"MAIL FROM:<a@example.com>") == b"250 2.1.0 Sender OK\r\n"
    assert made.say(b"RCPT TO:<ada@example.net>") == b"250 2.1.5 Recipient OK\r\n"
    return made
