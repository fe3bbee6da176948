"""In charge of the beginning of a session: greeting, EHLO or HELO, STARTTLS, EHLO again, AUTH. No I/O.

    GREETING ──> EHLO ──> STARTTLS ──> HANDSHAKE ──> EHLO ──> AUTH … ──> READY
                   └──> HELO

STARTTLS is left out when nobody wants it, AUTH without credentials; implicit TLS begins with HANDSHAKE. A state that is
not in the table with the first digit of the reply ends the session by that reply.
"""

from collections.abc import Callable
from enum import Enum, auto

from appliance.deliver.smtp import commands
from appliance.deliver.smtp.capabilities import Capabilities, capabilities
from appliance.deliver.smtp.commands import Credentials
from appliance.deliver.smtp.dialogue import Dialogue
from appliance.deliver.smtp.reply import Reply, ReplyReader
from appliance.deliver.smtp.results import Cause, Kind, Stage, Verdict, answered
from appliance.deliver.smtp.transcript import NOTE

MASK = "[secret]"


class State(Enum):
    """What the server is to answer, or where the opening has come to."""

    GREETING = auto()
    EHLO = auto()
    HELO = auto()
    STARTTLS = auto()
    HANDSHAKE = auto()  # the driver's turn
    AUTH_PLAIN = auto()
    AUTH_PLAIN_ASKED = auto()
    AUTH_LOGIN = auto()
    AUTH_USERNAME = auto()
    AUTH_PASSWORD = auto()
    READY = auto()
    ENDED = auto()


_STAGES = {
    State.GREETING: Stage.GREETING,
    State.EHLO: Stage.EHLO,
    State.HELO: Stage.EHLO,
    State.STARTTLS: Stage.STARTTLS,
    State.AUTH_PLAIN: Stage.AUTH,
    State.AUTH_PLAIN_ASKED: Stage.AUTH,
    State.AUTH_LOGIN: Stage.AUTH,
    State.AUTH_USERNAME: Stage.AUTH,
    State.AUTH_PASSWORD: Stage.AUTH,
}


class Opening(Dialogue):
    """Brings a fresh connection to where mail can be sent."""

    def __init__(
        self,
        hello_name: str,
        replies: ReplyReader,
        clock: Callable[[], float],
        *,
        starttls: bool = False,
        tls_required: bool = False,
        implicit_tls: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(replies, clock)
        self.state = State.HANDSHAKE if implicit_tls else State.GREETING
        self.capabilities = Capabilities()
        self._hello_name = hello_name
        self._starttls = starttls
        self._tls_required = tls_required
        self._implicit_tls = implicit_tls
        self._encrypted = False
        self._credentials = credentials
        commands.hello("EHLO", hello_name)  # refused before anything is dialled in vain

    @property
    def awaiting(self) -> Stage | None:
        """Nothing while the driver shakes hands, and once it is over."""
        return _STAGES.get(self.state)

    def secured(self, remark: str) -> None:
        """The handshake is done. What was heard before it is forgotten, and EHLO said again (RFC 3207 4.2)."""
        self._encrypted = True
        self.capabilities = Capabilities()
        self.transcript.add(NOTE, remark)
        if self._implicit_tls:
            self.state = State.GREETING
        else:
            self._say_ehlo(None)

    def not_secured(self, cause: Cause, text: str) -> None:
        """The handshake failed, and the connection with it."""
        self._fail_at(Stage.STARTTLS, cause, text)

    def _answer(self, reply: Reply) -> None:
        stage = _STAGES[self.state]
        if self._unasked(stage):
            return
        rule = _RULES.get((self.state, reply.family))
        if rule is None:
            self._end(answered(stage, reply))
        else:
            rule(self, reply)

    def _end(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.state = State.ENDED

    def _ask(self, state: State, line: str, shown: str | None = None) -> None:
        self.state = state
        self._say([line], shown)

    def _say_ehlo(self, _: Reply | None) -> None:
        self._ask(State.EHLO, commands.hello("EHLO", self._hello_name))

    def _say_helo(self, _: Reply) -> None:
        self._ask(State.HELO, commands.hello("HELO", self._hello_name))

    def _hear_ehlo(self, reply: Reply) -> None:
        self.capabilities = capabilities(reply)
        self._go_on()

    def _hear_helo(self, _: Reply) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """After EHLO: encrypt, log in, or be ready."""
        if self._starttls and not self._encrypted and self.capabilities.starttls:
            self._ask(State.STARTTLS, "STARTTLS")
        elif self._tls_required and not self._encrypted:
            self._fail_at(Stage.STARTTLS, Cause.TLS_NOT_OFFERED, "the server does not offer STARTTLS")
        elif self._credentials is None:
            self.state = State.READY
        elif not self._encrypted:
            self._fail_at(Stage.AUTH, Cause.TLS_NOT_OFFERED, "credentials are not sent without TLS")
        else:
            self._log_in(self._credentials)

    def _shake_hands(self, _: Reply) -> None:
        self.state = State.HANDSHAKE

    def _stay_plain(self, reply: Reply) -> None:
        """STARTTLS was offered and refused: RFC 3207 4.1 leaves it to us whether to go on."""
        if self._tls_required:
            text = f"the server refused STARTTLS: {reply}"
            self._end(Verdict(Kind.LOST, Stage.STARTTLS, text, reply, Cause.TLS_NOT_OFFERED))
        else:
            self._starttls = False
            self._go_on()

    def _log_in(self, credentials: Credentials) -> None:
        if "PLAIN" in self.capabilities.auth:
            secret = commands.plain_secret(credentials)
            self._ask(State.AUTH_PLAIN, f"AUTH PLAIN {secret}", f"AUTH PLAIN {MASK}")
        elif "LOGIN" in self.capabilities.auth:
            self._ask(State.AUTH_LOGIN, "AUTH LOGIN")
        else:
            self._fail_at(Stage.AUTH, Cause.AUTH_NOT_OFFERED, "the server offers neither AUTH PLAIN nor AUTH LOGIN")

    def _give_plain(self, _: Reply) -> None:
        """A server that overlooked the initial response asks for it (RFC 4954 4)."""
        assert self._credentials is not None  # noqa: S101 - no AUTH without
        self._ask(State.AUTH_PLAIN_ASKED, commands.plain_secret(self._credentials), MASK)

    def _give_username(self, _: Reply) -> None:
        assert self._credentials is not None  # noqa: S101 - no AUTH without
        self._ask(State.AUTH_USERNAME, commands.base64(self._credentials.username), MASK)

    def _give_password(self, _: Reply) -> None:
        assert self._credentials is not None  # noqa: S101 - no AUTH without
        self._ask(State.AUTH_PASSWORD, commands.base64(self._credentials.password), MASK)

    def _be_ready(self, _: Reply) -> None:
        self.state = State.READY


_RULES: dict[tuple[State, int], Callable[[Opening, Reply], None]] = {
    (State.GREETING, 2): Opening._say_ehlo,
    (State.EHLO, 2): Opening._hear_ehlo,
    (State.EHLO, 5): Opening._say_helo,  # RFC 5321 3.2
    (State.HELO, 2): Opening._hear_helo,
    (State.STARTTLS, 2): Opening._shake_hands,
    (State.STARTTLS, 4): Opening._stay_plain,
    (State.STARTTLS, 5): Opening._stay_plain,
    (State.AUTH_PLAIN, 2): Opening._be_ready,
    (State.AUTH_PLAIN, 3): Opening._give_plain,
    (State.AUTH_PLAIN_ASKED, 2): Opening._be_ready,
    (State.AUTH_LOGIN, 3): Opening._give_username,
    (State.AUTH_USERNAME, 3): Opening._give_password,
    (State.AUTH_PASSWORD, 2): Opening._be_ready,
}
