"""The opening of a session: greeting, EHLO or HELO, STARTTLS, EHLO again, AUTH. No I/O.

    GREETING ──> EHLO ──> STARTTLS ──> HANDSHAKE ──> EHLO ──> AUTH … ──> READY
                   └──> HELO

STARTTLS is left out when TLS is not wanted, AUTH without credentials; implicit TLS begins with HANDSHAKE. A state that
is not in the table with the first digit of the reply ends the session by that reply.
"""

from collections.abc import Callable
from enum import Enum, auto

from appliance.deliver.smtp.protocol import RelayCredentials, SmtpExchange, base64, hello_command, plain_secret
from appliance.deliver.smtp.reply import Capabilities, Reply, ReplyReader, capabilities
from appliance.deliver.smtp.results import NOTE, Cause, ResultKind, Stage, Verdict, answered

MASK = "[secret]"


class OpeningState(Enum):
    """Which reply is awaited, or how far the opening has come."""

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
    OpeningState.GREETING: Stage.GREETING,
    OpeningState.EHLO: Stage.EHLO,
    OpeningState.HELO: Stage.EHLO,
    OpeningState.STARTTLS: Stage.STARTTLS,
    OpeningState.AUTH_PLAIN: Stage.AUTH,
    OpeningState.AUTH_PLAIN_ASKED: Stage.AUTH,
    OpeningState.AUTH_LOGIN: Stage.AUTH,
    OpeningState.AUTH_USERNAME: Stage.AUTH,
    OpeningState.AUTH_PASSWORD: Stage.AUTH,
}


class Opening(SmtpExchange):
    def __init__(
        self,
        hello_name: str,
        replies: ReplyReader,
        clock: Callable[[], float],
        *,
        starttls: bool = False,
        tls_required: bool = False,
        implicit_tls: bool = False,
        credentials: RelayCredentials | None = None,
    ) -> None:
        super().__init__(replies, clock)
        self.state = OpeningState.HANDSHAKE if implicit_tls else OpeningState.GREETING
        self.capabilities = Capabilities()
        self._hello_name = hello_name
        self._starttls = starttls
        self._tls_required = tls_required
        self._implicit_tls = implicit_tls
        self._encrypted = False
        self._credentials = credentials
        hello_command("EHLO", hello_name)  # refused before anything is dialled in vain

    @property
    def awaiting(self) -> Stage | None:
        """Nothing during the handshake, and once it is over."""
        return _STAGES.get(self.state)

    def secured(self, remark: str) -> None:
        """The handshake is done. What was said before is forgotten, and EHLO sent again (RFC 3207 4.2)."""
        self._encrypted = True
        self.capabilities = Capabilities()
        self.transcript.add(NOTE, remark)
        if self._implicit_tls:
            self.state = OpeningState.GREETING
        else:
            self._say_ehlo(None)

    def not_secured(self, cause: Cause, text: str) -> None:
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
        self.state = OpeningState.ENDED

    def _ask(self, state: OpeningState, line: str, shown: str | None = None) -> None:
        self.state = state
        self._say([line], shown)

    def _say_ehlo(self, _: Reply | None) -> None:
        self._ask(OpeningState.EHLO, hello_command("EHLO", self._hello_name))

    def _say_helo(self, _: Reply) -> None:
        self._ask(OpeningState.HELO, hello_command("HELO", self._hello_name))

    def _hear_ehlo(self, reply: Reply) -> None:
        self.capabilities = capabilities(reply)
        self._go_on()

    def _hear_helo(self, _: Reply) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """After EHLO: encrypt, log in, or be ready."""
        if self._starttls and not self._encrypted and self.capabilities.starttls:
            self._ask(OpeningState.STARTTLS, "STARTTLS")
        elif self._tls_required and not self._encrypted:
            self._fail_at(Stage.STARTTLS, Cause.TLS_NOT_OFFERED, "the server does not offer STARTTLS")
        elif self._credentials is None:
            self.state = OpeningState.READY
        elif not self._encrypted:
            self._fail_at(Stage.AUTH, Cause.TLS_NOT_OFFERED, "credentials are not sent without TLS")
        else:
            self._log_in(self._credentials)

    def _shake_hands(self, _: Reply) -> None:
        self.state = OpeningState.HANDSHAKE

    def _stay_plain(self, reply: Reply) -> None:
        """STARTTLS was offered and refused: RFC 3207 4.1 leaves it to us whether to go on."""
        if self._tls_required:
            text = f"the server refused STARTTLS: {reply}"
            self._end(Verdict(ResultKind.LOST, Stage.STARTTLS, text, reply, Cause.TLS_NOT_OFFERED))
        else:
            self._starttls = False
            self._go_on()

    def _log_in(self, credentials: RelayCredentials) -> None:
        if "PLAIN" in self.capabilities.auth:
            secret = plain_secret(credentials)
            self._ask(OpeningState.AUTH_PLAIN, f"AUTH PLAIN {secret}", f"AUTH PLAIN {MASK}")
        elif "LOGIN" in self.capabilities.auth:
            self._ask(OpeningState.AUTH_LOGIN, "AUTH LOGIN")
        else:
            self._fail_at(Stage.AUTH, Cause.AUTH_NOT_OFFERED, "the server offers neither AUTH PLAIN nor AUTH LOGIN")

    def _give_plain(self, _: Reply) -> None:
        """A server that overlooked the initial response asks for it (RFC 4954 4)."""
        assert self._credentials is not None  # noqa: S101 - no AUTH without
        self._ask(OpeningState.AUTH_PLAIN_ASKED, plain_secret(self._credentials), MASK)

    def _give_username(self, _: Reply) -> None:
        assert self._credentials is not None  # noqa: S101 - no AUTH without
        self._ask(OpeningState.AUTH_USERNAME, base64(self._credentials.username), MASK)

    def _give_password(self, _: Reply) -> None:
        assert self._credentials is not None  # noqa: S101 - no AUTH without
        self._ask(OpeningState.AUTH_PASSWORD, base64(self._credentials.password), MASK)

    def _be_ready(self, _: Reply) -> None:
        self.state = OpeningState.READY


_RULES: dict[tuple[OpeningState, int], Callable[[Opening, Reply], None]] = {
    (OpeningState.GREETING, 2): Opening._say_ehlo,
    (OpeningState.EHLO, 2): Opening._hear_ehlo,
    (OpeningState.EHLO, 5): Opening._say_helo,  # RFC 5321 3.2
    (OpeningState.HELO, 2): Opening._hear_helo,
    (OpeningState.STARTTLS, 2): Opening._shake_hands,
    (OpeningState.STARTTLS, 4): Opening._stay_plain,
    (OpeningState.STARTTLS, 5): Opening._stay_plain,
    (OpeningState.AUTH_PLAIN, 2): Opening._be_ready,
    (OpeningState.AUTH_PLAIN, 3): Opening._give_plain,
    (OpeningState.AUTH_PLAIN_ASKED, 2): Opening._be_ready,
    (OpeningState.AUTH_LOGIN, 3): Opening._give_username,
    (OpeningState.AUTH_USERNAME, 3): Opening._give_password,
    (OpeningState.AUTH_PASSWORD, 2): Opening._be_ready,
}
