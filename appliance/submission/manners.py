"""In charge of how far a client may go: its mistakes and idle commands are answered, counted, and at last its end."""

from appliance.errors import Refused
from appliance.submission import limits, replies
from appliance.submission.actions import Next, Phase


class Manners:
    """The part of a dialogue that keeps count. `out` holds what is to be written; the driver takes it from there."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.phase = Phase.COMMAND
        self.stopping = False
        self.quit = False
        self._input = b""  # what has come and was not read yet
        self._errors = self._junk = 0

    def goodbye(self, last_word: bytes) -> Next:
        """End it from our side."""
        if self.phase is not Phase.OVER:
            self.out.append(last_word)
            self.close()
        return None

    def close(self) -> None:
        """Nothing more is read or said."""
        self.phase = Phase.OVER
        self._input = b""
        self._let_go()

    def _let_go(self) -> None:
        """Give back whatever is held; for the parts that hold something."""

    def stop(self) -> None:
        """The program is ending: at once, unless a message is on its way, which is answered first."""
        self.stopping = True
        if self.phase is Phase.COMMAND and not self._is_midway():
            self.goodbye(replies.CLOSING)

    def _is_midway(self) -> bool:
        """Whether a part of a message has come, and its next part begins with a command; for those who take any."""
        return False

    def go_on(self) -> None:
        """What was to be done first is done: commands are read again."""
        if self.phase is Phase.ACTION:
            self.phase = Phase.COMMAND

    def _well_done(self) -> None:
        """A message has come in: whatever went wrong before it is forgiven."""
        self._errors = self._junk = 0

    def _fail(self, reply: bytes) -> Next:
        """Answer a mistake, and count it."""
        self.out.append(reply)
        self._errors += 1
        if self._errors >= limits.ERRORS:
            self.goodbye(replies.TOO_MANY_ERRORS)
        return None

    def _useless(self, reply: bytes) -> Next:
        """Answer a command that brings no mail, and count it."""
        self.out.append(reply)
        self._junk += 1
        if self._junk >= limits.JUNK:
            self.goodbye(replies.TOO_MUCH_JUNK)
        return None

    def _refuse(self, refused: Refused) -> Next:
        """Answer what the rest of the program refuses."""
        return self._deny(replies.refusal(refused))

    def _deny(self, reply: bytes) -> Next:
        """Answer the sender's mistake, or one that time may mend."""
        return self._fail(reply) if reply.startswith(b"5") else self._useless(reply)
