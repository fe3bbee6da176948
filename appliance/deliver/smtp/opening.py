"""The opening of a session: greeting, EHLO or HELO, STARTTLS, EHLO again, AUTH. No I/O.

    GREETING ──> EHLO ──> STARTTLS ──> HANDSHAKE ──> EHLO ──> AUTH … ──> READY
                   └──> HELO

STARTTLS is left out when TLS is not wanted, AUTH without credentials; implicit TLS begins with HANDSHAKE. A state that
has no rule for the first digit of the reply ends the session by that reply.
"""

from collections.abc import Callable
from enum import Enum

from appliance.deliver.smtp.protocol import (
    NOTE,
    Cause,
    RelayCredentials,
    ResultKind,
    SmtpExchange,
    Stage,
    Verdict,
    answered,
    base64,
    hello_command,
    plain_secret,
)
from appliance.deliver.smtp.reply import Capabilities, Reply, ReplyReader, capabilities
from appliance.deliver.smtp.tls import TlsPlan

MASK = "[secret]"


class OpeningState(Enum):
    """How far the opening has come, with the stage that the awaited reply answers."""

    GREETING = 1, Stage.GREETING
    EHLO = 2, Stage.EHLO
    HELO = 3, Stage.EHLO
    STARTTLS = 4, Stage.STARTTLS
    HANDSHAKE = 5, None  # the driver's turn
    AUTH_PLAIN = 6, Stage.AUTH
    AUTH_PLAIN_ASKED = 7, Stage.AUTH
    AUTH_LOGIN = 8, Stage.AUTH
    AUTH_USERNAME = 9, Stage.AUTH
    AUTH_PASSWORD = 10, Stage.AUTH
    READY = 11, None
    ENDED = 12, None


class Opening(SmtpExchange):
    def __init__(
        self,
        hello_name: str,
        replies: ReplyReader,
        clock: Callable[[], float],
        tls: TlsPlan | None = None,
        credentials: RelayCredentials | None = None,
    ) -> None:
        super().__init__(replies, clock)
        self.state = OpeningState.HANDSHAKE if tls is not None and tls.implicit else OpeningState.GREETING
        self.capabilities = Capabilities()
        self._hello_name, self._tls, self._credentials = hello_name, tls, credentials
        self._encrypted = self._refused = False  # whether TLS is there, or STARTTLS was refused
        hello_command("EHLO", hello_name)  # refused before anything is dialled in vain

    @property
    def awaiting(self) -> Stage | None:
        """Nothing during the handshake, and once it is over."""
        stage: Stage | None = self.state.value[1]
        return stage

    def secured(self, remark: str) -> None:
        """The handshake is done. What was said before is forgotten, and EHLO sent again (RFC 3207 4.2)."""
        self._encrypted = True
        self.capabilities = Capabilities()
        self.transcript.add(NOTE, remark)
        if self._tls is not None and self._tls.implicit:
            self.state = OpeningState.GREETING
        else:
            self._say_hello(OpeningState.EHLO)

    def not_secured(self, cause: Cause, text: str) -> None:
        self._fail_at(Stage.STARTTLS, cause, text)

    def _answer(self, reply: Reply) -> None:
        stage, login, tls = self.awaiting, self._credentials, self._tls
        if stage is None or self._unasked(stage):
            return
        match self.state, reply.family:
            case OpeningState.GREETING, 2:
                self._say_hello(OpeningState.EHLO)
            case OpeningState.EHLO, 2:
                self.capabilities = capabilities(reply)
                self._go_on()
            case OpeningState.EHLO, 5:  # RFC 5321 3.2
                self._say_hello(OpeningState.HELO)
            case OpeningState.HELO, 2:
                self._go_on()
            case OpeningState.STARTTLS, 2:
                self.state = OpeningState.HANDSHAKE
            case OpeningState.STARTTLS, 4 | 5 if tls is not None and tls.demanded:
                text = f"the server refused STARTTLS: {reply.shown}"
                self._end(Verdict(ResultKind.LOST, stage, text, reply, Cause.TLS_NOT_OFFERED))
            case OpeningState.STARTTLS, 4 | 5:  # RFC 3207 4.1 leaves it to us whether to go on
                self._refused = True
                self._go_on()
            case ((OpeningState.AUTH_PLAIN | OpeningState.AUTH_PLAIN_ASKED | OpeningState.AUTH_PASSWORD), 2):
                self.state = OpeningState.READY
            case OpeningState.AUTH_PLAIN, 3 if login:  # it overlooked the initial response (RFC 4954 4)
                self._ask(OpeningState.AUTH_PLAIN_ASKED, plain_secret(login), MASK)
            case OpeningState.AUTH_LOGIN, 3 if login:
                self._ask(OpeningState.AUTH_USERNAME, base64(login.username), MASK)
            case OpeningState.AUTH_USERNAME, 3 if login:
                self._ask(OpeningState.AUTH_PASSWORD, base64(login.password), MASK)
            case _:
                self._end(answered(stage, reply))

    def _end(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.state = OpeningState.ENDED

    def _ask(self, state: OpeningState, line: str, shown: str | None = None) -> None:
        self.state = state
        self._say([line], shown)

    def _say_hello(self, state: OpeningState) -> None:
        self._ask(state, hello_command(state.name, self._hello_name))

    def _go_on(self) -> None:
        """After EHLO: encrypt, log in, or be ready."""
        tls = None if self._encrypted or self._refused else self._tls
        if tls is not None and self.capabilities.starttls:
            self._ask(OpeningState.STARTTLS, "STARTTLS")
        elif tls is not None and tls.demanded:
            self._fail_at(Stage.STARTTLS, Cause.TLS_NOT_OFFERED, "the server does not offer STARTTLS")
        elif self._credentials is None:
            self.state = OpeningState.READY
        elif not self._encrypted:
            self._fail_at(Stage.AUTH, Cause.TLS_NOT_OFFERED, "credentials are not sent without TLS")
        elif "PLAIN" in self.capabilities.auth:
            secret = plain_secret(self._credentials)
            self._ask(OpeningState.AUTH_PLAIN, f"AUTH PLAIN {secret}", f"AUTH PLAIN {MASK}")
        elif "LOGIN" in self.capabilities.auth:
            self._ask(OpeningState.AUTH_LOGIN, "AUTH LOGIN")
        else:
            self._fail_at(Stage.AUTH, Cause.AUTH_NOT_OFFERED, "the server offers neither AUTH PLAIN nor AUTH LOGIN")
