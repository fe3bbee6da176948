"""In charge of who a client is: STARTTLS, AUTH (RFC 4954), and what is missing before it may send."""

from collections.abc import Callable
from functools import partial

from appliance.submission import limits, replies
from appliance.submission.actions import House, Next, StartTls, WrongLogin
from appliance.submission.content import Room
from appliance.submission.intake import Intake
from appliance.submission.login import Login, decoded, pair, plain


class Admission(Intake):
    """The part of a dialogue that comes before MAIL."""

    def __init__(self, house: House, room: Room, *, secure: bool, plaintext_login: bool) -> None:
        super().__init__(room)
        self._house = house
        self._plaintext_login = plaintext_login
        self._login_failures = 0
        self._forget_client(secure=secure)

    def _forget_client(self, *, secure: bool) -> None:
        """Begin as if nothing had been said (RFC 3207 4.2)."""
        self.secure = secure
        self._name = ""
        self._extended = False
        self._login: Login | None = None
        self._caller = None
        self._end_transaction()
        self._answer_to_login: Callable[[str], Next] | None = None

    @property
    def _may_login(self) -> bool:
        return self.secure or self._plaintext_login

    def _no_transaction(self) -> bytes:
        """What is missing before anything about a message can be said."""
        if self._login is not None:
            return replies.MAIL_FIRST
        return replies.LOGIN_NEEDED if self._may_login else replies.TLS_NEEDED

    # ---- STARTTLS

    def _starttls(self, argument: str) -> Next:
        if argument:
            return self._fail(replies.SYNTAX_NOTHING)
        if self.secure:
            return self._fail(replies.NO_TLS_HERE)
        self.out.append(replies.READY_FOR_TLS)
        # Whatever came in the clear behind it may be anybody's (RFC 3207 4.2, 5). The driver reads nothing more so.
        self._input = b""
        return StartTls()

    def secured(self) -> None:
        """TLS has begun; its first bytes may be here already."""
        self._forget_client(secure=True)
        self.go_on()

    # ---- AUTH (RFC 4954)

    def _auth(self, argument: str) -> Next:
        if not self._extended:
            return self._fail(replies.SAY_HELLO)
        if not self._may_login:
            return self._fail(replies.LOGIN_NEEDS_TLS)
        if self._login is not None or self._transaction is not None:
            return self._fail(replies.LOGGED_IN_ALREADY)
        mechanism, _, initial = argument.partition(" ")
        if not mechanism or " " in initial:
            return self._fail(replies.SYNTAX_AUTH)
        begin = _MECHANISMS.get(mechanism.upper())
        if begin is None:
            return self._fail(replies.MECHANISM_UNKNOWN)
        question, understood = begin[0], partial(begin[1], self)
        return self._answered(initial, understood) if initial else self._ask(question, understood)

    def _ask(self, question: bytes, understood: Callable[[str], Next]) -> Next:
        self.out.append(question)
        self._answer_to_login = understood
        return None

    def _answered(self, text: str, understood: Callable[[str], Next]) -> Next:
        if text == "*":
            return self._fail(replies.LOGIN_ABORTED)
        answer = decoded(text)
        return self._fail(replies.LOGIN_UNREADABLE) if answer is None else understood(answer)

    def _plain(self, answer: str) -> Next:
        login = plain(answer)
        return self._fail(replies.LOGIN_NO_PAIR) if login is None else self._log_in(login)

    def _username(self, username: str) -> Next:
        return self._ask(replies.ASK_PASSWORD, lambda password: self._log_in(pair(username, password)))

    def _log_in(self, login: Login) -> Next:
        caller = self._house.caller(login)
        if caller is None:
            return WrongLogin()
        if not self._house.admit(caller):
            return self.goodbye(replies.TOO_MANY_CONNECTIONS)
        self._login = login
        self.out.append(replies.LOGGED_IN)
        return None

    def login_failed(self, *, too_many: bool) -> None:
        """It was counted; `too_many`: its address has failed so often that it is not listened to for a while."""
        self._login_failures += 1
        self.go_on()
        if too_many or self._login_failures >= limits.LOGIN_FAILURES:
            self.goodbye(replies.TOO_MANY_FAILURES)
        else:
            self._fail(replies.WRONG_LOGIN)


_MECHANISMS: dict[str, tuple[bytes, Callable[[Admission, str], Next]]] = {
    "PLAIN": (replies.ASK_PLAIN, Admission._plain),
    "LOGIN": (replies.ASK_USERNAME, Admission._username),
}
