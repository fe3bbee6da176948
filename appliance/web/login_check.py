"""Checks what proves a user: the password, and where a second factor is in force its code or a recovery code.

Invariant: every check counts as a failed login when it arrives, before anything is compared, and the count is given
back when all was right (see `login_throttle`). A wrong code costs as much as a wrong password: the count, and a second;
and it counts by its user besides.
"""

from dataclasses import dataclass, field

import trio

from appliance.errors import Code, PublicError, Refused
from appliance.intake.login_throttle import FAILURE_DELAY, LoginThrottle
from appliance.keys.keyfile import UnsealError
from appliance.keys.passwords import PasswordHasher, hash_password
from appliance.keys.totp import TotpSecrets, is_totp_code, plain_code
from appliance.model.accounts import User
from appliance.net.address_policy import site_of
from appliance.store import Store
from appliance.telemetry.log import get_logger

CODE_NEEDED = "The password is right. Give a code of your second factor, too."
CODE_REFUSED = "This code is wrong, or was used before. Wait for the next one, or use a recovery code."
SECOND_FACTOR_HEADER = "Second-Factor"  # with `required`, on a refusal for want of a code

log = get_logger("web")


class SecondFactorNeeded(Refused):
    """The password was right, and the code is missing or wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.UNAUTHORIZED, text)


@dataclass(slots=True)
class LoginCheck:
    store: Store
    guesses: LoginThrottle
    hashing: PasswordHasher
    totp: TotpSecrets
    # The password of an unknown user is checked against this hash, so that the answer takes as long.
    _unknown_user_hash: str = field(default_factory=lambda: hash_password("unknown user"), repr=False)

    async def is_right(self, email: str, password: str, user: User | None, address: str) -> bool:
        """Whether this is the user's password; it takes as long if there is no such user."""
        return await self._check(email, password, user, address, None)

    async def is_right_with_code(self, email: str, password: str, code: str, user: User | None, address: str) -> bool:
        """The same, and a code where one is needed. Raises SecondFactorNeeded if only that is missing or wrong."""
        return await self._check(email, password, user, address, code)

    async def _check(self, email: str, password: str, user: User | None, address: str, code: str | None) -> bool:
        # Counted as a failed login, or refused, before the password is hashed.
        known = await self.store.sessions.addresses(user.id if user else "")
        refused_at = trio.current_time() + FAILURE_DELAY
        try:
            attempt = self.guesses.attempt(email, address, known)
        except Refused:
            await trio.sleep_until(refused_at)
            raise
        await trio.sleep(attempt.wait)
        try:
            stored = user.password_hash if user else self._unknown_user_hash
            right = await self.hashing.matches(password, stored, site_of(address))
        except PublicError:
            attempt.withdrawn()
            raise
        if user is None or not right:
            if (refusal := attempt.failed()) is not None:
                await trio.sleep_until(refused_at)  # as one whose password is not checked, unless hashing takes longer
                raise refusal
            await trio.sleep(FAILURE_DELAY)
            return False
        if code is not None and user.has_totp:
            if not code:
                attempt.withdrawn()  # nothing was guessed
                raise SecondFactorNeeded(CODE_NEEDED)
            try:
                guess = self.guesses.code(email, address, known)
            except Refused:
                attempt.withdrawn()  # the password was right, and no code was compared
                raise
            if not await self._spend(user, plain_code(code)):
                attempt.failed()
                await trio.sleep(FAILURE_DELAY)
                raise SecondFactorNeeded(CODE_REFUSED)
            guess.was_right()
        attempt.succeeded()
        return True

    async def _spend(self, user: User, code: str) -> bool:
        """Whether the code was good; then it no longer is."""
        if not is_totp_code(code):
            return await self.store.second_factors.use_recovery_code(user.id, code)
        step = await self.step_of(user.id, code)
        return step is not None and await self.store.second_factors.use_step(user.id, step)

    async def step_of(self, user_id: str, code: str) -> int | None:
        """Which step of the user's second factor, in force or not, a code belongs to."""
        factor = await self.store.second_factors.of(user_id)
        if factor is None:
            return None
        try:
            return self.totp.step_of(user_id, factor.secret, code)
        except UnsealError as error:  # recovery codes still work
            log.error("a second factor cannot be read", user=user_id, cause=str(error))
            return None
