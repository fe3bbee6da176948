"""In charge of one message on its way in: its recipients and its content, by DATA or BDAT, and the memory it takes."""

from abc import ABC, abstractmethod

from appliance.errors import Refused
from appliance.message import addresses
from appliance.message.cost import of_address
from appliance.message.limits import MESSAGE_SIZE, RECIPIENTS
from appliance.model.mail import Caller
from appliance.submission import commands, limits, replies
from appliance.submission.actions import Next, Phase, ReadRecipient, Submit
from appliance.submission.content import Chunks, Data, Room
from appliance.submission.manners import Manners


class BadAddress(Exception):
    """An address that the one strict parser does not take."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def address(text: str, field: str) -> addresses.Address:
    """An address of the envelope, as the one strict parser has it."""
    if " " in text:
        raise BadAddress(f"{field}: an address must not contain a space")
    try:
        return addresses.parse(text, field)
    except Refused as refused:
        raise BadAddress(refused.text) from None


def is_costly(text: str) -> bool:
    """Whether reading this address takes longer than the event loop should be kept."""
    return of_address(text) > limits.ADDRESS_COST


class Transaction:
    """From MAIL to the end of the message."""

    __slots__ = ("chunks", "rcpts", "recipients", "sender", "utf8")

    def __init__(self, sender: str, *, utf8: bool) -> None:
        self.sender = sender
        self.utf8 = utf8
        self.recipients: dict[str, str] = {}  # as they are compared: as they were spelled
        self.rcpts = 0
        self.chunks: Chunks | None = None


class Intake(Manners, ABC):
    """The part of a dialogue that follows MAIL."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self._room = room
        self._taken = ("", 0)  # of the room: by whom, and how much
        self._caller: Caller | None = None
        self._transaction: Transaction | None = None
        self._refusal = b""  # of the content that is being read, told at its end
        self.content: Data | Chunks | None = None
        self.secure = False

    @abstractmethod
    def _no_transaction(self) -> bytes:
        """What is missing before anything about a message can be said."""

    def _let_go(self) -> None:
        self._end_transaction()

    def _is_midway(self) -> bool:
        return self._transaction is not None and self._transaction.chunks is not None

    # ---- RCPT

    def _rcpt(self, argument: str) -> Next:
        transaction = self._transaction
        if transaction is None:
            return self._fail(self._no_transaction())
        if transaction.chunks is not None:
            return self._fail(replies.NOT_AMONG_CHUNKS)
        transaction.rcpts += 1
        if transaction.rcpts > limits.RCPTS:
            return self.goodbye(replies.TOO_MUCH_JUNK)
        path = commands.path(argument, "TO:")
        if path is None or not path.address:
            return self._fail(replies.SYNTAX_RCPT)
        if path.parameters:
            return self._fail(replies.NO_SUCH_PARAMETER)
        if not (transaction.utf8 or path.address.isascii()):
            return self._fail(replies.NEEDS_SMTPUTF8)
        if is_costly(path.address):
            return self._costly_recipient(transaction, path.address)
        try:
            return self._recipient(address(path.address, "RCPT TO"))
        except BadAddress as bad:
            return self._fail(replies.reply("553 5.1.3", bad.reason))

    def _costly_recipient(self, transaction: Transaction, text: str) -> Next:
        """One whose reading takes so long that it is done elsewhere, and not at all where it would be in vain."""
        if len(transaction.recipients) < RECIPIENTS:
            assert self._caller is not None  # noqa: S101 - a transaction has one
            return ReadRecipient(self._caller.account_id, text)
        known = text in transaction.recipients.values()
        self.out.append(replies.RECIPIENT_OK if known else replies.TOO_MANY_RECIPIENTS)
        return None

    def recipient_read(self, read: addresses.Address | BadAddress | Refused) -> None:
        """What became of an address that was read elsewhere."""
        self.go_on()
        if isinstance(read, addresses.Address):
            self._recipient(read)
        elif isinstance(read, BadAddress):
            self._fail(replies.reply("553 5.1.3", read.reason))
        else:
            self._refuse(read)

    def _recipient(self, recipient: addresses.Address) -> Next:
        transaction = self._transaction
        if transaction is None:  # the client has gone meanwhile
            return None
        if len(transaction.recipients) >= RECIPIENTS and recipient.key not in transaction.recipients:
            self.out.append(replies.TOO_MANY_RECIPIENTS)
        else:
            transaction.recipients.setdefault(recipient.key, recipient.spelling)
            self.out.append(replies.RECIPIENT_OK)
        return None

    # ---- DATA and BDAT

    def _data(self, argument: str) -> Next:
        wrong = self._wrong_before_content(replies.SYNTAX_NOTHING if argument else b"")
        if not wrong and self._transaction is not None and self._transaction.chunks is not None:
            wrong = replies.NOT_AMONG_CHUNKS
        if wrong:
            self._fail(wrong)
            if self._input:
                # Whoever did not wait for our answer is sending the message now. It must not be read as commands.
                self.goodbye(replies.TALKED_TOO_EARLY)
            return None
        self.content = Data()
        self.phase = Phase.CONTENT
        self.out.append(replies.GO_AHEAD)
        return None

    def _wrong_before_content(self, syntax: bytes) -> bytes:
        if syntax:
            return syntax
        if self._transaction is None:
            return self._no_transaction()
        return b"" if self._transaction.recipients else replies.RCPT_FIRST

    def _bdat(self, argument: str) -> Next:
        announced = commands.chunk(argument)
        if announced is None:
            # How much of what follows is content, nobody knows.
            return self.goodbye(replies.SYNTAX_BDAT)
        size, last = announced
        if size > MESSAGE_SIZE:
            return self.goodbye(replies.TOO_LARGE)
        self._refusal = self._wrong_before_content(b"")
        transaction = self._transaction
        if transaction is None or self._refusal:
            chunks = Chunks()
            chunks.discard()
        else:
            chunks = transaction.chunks = transaction.chunks or Chunks()
        chunks.expect(size, last=last)
        self.content, self.phase = chunks, Phase.CONTENT
        return None if size else self._chunk_taken(chunks)

    def _read_content(self) -> Next:
        content = self.content
        assert content is not None  # noqa: S101 - the phase says so
        data, self._input = self._input, b""
        before = content.size
        rest = content.receive(data)
        if content.kept:
            self._hold(content, content.size - before)
        if rest is None:
            return None
        self._input = rest
        return self._chunk_taken(content) if isinstance(content, Chunks) else self._content_complete(content)

    def _hold(self, content: Data | Chunks, more: int) -> None:
        owner = self._caller.account_id if self._caller else ""
        if self._room.take(owner, more):
            self._taken = (owner, self._taken[1] + more)
        else:
            content.discard()
            self._refusal = replies.NO_MEMORY

    def _chunk_taken(self, chunks: Chunks) -> Next:
        wrong = self._refusal or (b"" if chunks.kept else replies.TOO_LARGE)
        if wrong:
            self.phase = Phase.COMMAND
            self._end_transaction()
            return self._deny(wrong)
        if chunks.last:
            return self._content_complete(chunks)
        self.phase = Phase.COMMAND
        if chunks.announced < limits.SMALL_CHUNK:
            return self._useless(replies.CHUNK_TAKEN)
        self.out.append(replies.CHUNK_TAKEN)
        return None

    def _content_complete(self, content: Data | Chunks) -> Next:
        transaction, caller = self._transaction, self._caller
        assert transaction is not None  # noqa: S101 - content is read only within one
        assert caller is not None  # noqa: S101
        self.phase = Phase.COMMAND
        if content.kept:
            recipients = tuple(transaction.recipients.values())
            return Submit(caller, transaction.sender, recipients, content.content, content.size, self.secure)
        wrong = self._refusal or replies.TOO_LARGE
        self._end_transaction()
        return self._deny(wrong)

    def _end_transaction(self) -> None:
        self._transaction = None
        self.content = None
        self._refusal = b""
        if self._taken[1]:
            self._room.give_back(*self._taken)
            self._taken = ("", 0)
