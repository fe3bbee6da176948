"""Checks a user's password, and the two-factor or recovery code if two-factor authentication is on.

Invariant: every check counts as a failed login on arrival, before anything is compared. Success removes the count (see
`login_throttle`). A wrong code costs as much as a wrong password, and also counts for its user.
"""

from dataclasses import dataclass, field

import trio

from appliance.errors import Code, PublicError, Refused
from appliance.intake.login_throttle import FAILURE_DELAY, LoginThrottle
from appliance.keys.keyfile import UnsealError
from appliance.keys.secrets import PasswordHasher, TotpSecrets, hash_password, is_totp_code, plain_code
from appliance.model.accounts import User
from appliance.net.address_policy import site_of
from appliance.store import Store
from appliance.telemetry.log import get_logger

CODE_NEEDED = "Two-factor code required. Send the current code from your app, or a recovery code."
CODE_REFUSED = "This code is wrong or was already used. Wait for the next code, or use a recovery code."
SECOND_FACTOR_HEADER = "Second-Factor"  # `required` if a code is missing or wrong

log = get_logger("web")


class SecondFactorNeeded(Refused):
    """The password was right, but the code is missing or wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.UNAUTHORIZED, text)


@dataclass(slots=True)
class LoginCheck:
    store: Store
    guesses: LoginThrottle
    hashing: PasswordHasher
    totp: TotpSecrets
    # Unknown users are checked against this hash, so that the response takes as long.
    _unknown_user_hash: str = field(default_factory=lambda: hash_password("unknown user"), repr=False)

    async def is_right(self, email: str, password: str, user: User | None, address: str) -> bool:
        """Whether the password is right. Takes as long for an unknown user."""
        return await self._check(email, password, user, address, None)

    async def is_right_with_code(self, email: str, password: str, code: str, user: User | None, address: str) -> bool:
        """Also check the code, if required. Raises SecondFactorNeeded if only the code is missing or wrong."""
        return await self._check(email, password, user, address, code)

    async def _check(self, email: str, password: str, user: User | None, address: str, code: str | None) -> bool:
        # Count it as a failed login, or refuse it, before the password is hashed.
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
                await trio.sleep_until(refused_at)  # same delay as an unchecked password, unless hashing takes longer
                raise refusal
            await trio.sleep(FAILURE_DELAY)
            return False
        if code is not None and user.has_totp:
            if not code:
                attempt.withdrawn()  # no guess was made
                raise SecondFactorNeeded(CODE_NEEDED)
            try:
                guess = self.guesses.code(email, address, known)
            except Refused:
                attempt.withdrawn()  # the password was right and no code was compared
                raise
            if not await self._spend(user, plain_code(code)):
                attempt.failed()
                await trio.sleep(FAILURE_DELAY)
                raise SecondFactorNeeded(CODE_REFUSED)
            guess.was_right()
        attempt.succeeded()
        return True

    async def _spend(self, user: User, code: str) -> bool:
        """Use the code up. Return whether it was valid."""
        if not is_totp_code(code):
            return await self.store.second_factors.use_recovery_code(user.id, code)
        step = await self.step_of(user.id, code)
        return step is not None and await self.store.second_factors.use_step(user.id, step)

    async def step_of(self, user_id: str, code: str) -> int | None:
        """The time step that a code belongs to, for an active or pending second factor."""
        factor = await self.store.second_factors.of(user_id)
        if factor is None:
            return None
        try:
            return self.totp.step_of(user_id, factor.secret, code)
        except UnsealError as error:  # recovery codes still work
            log.error("two-factor secret unreadable", user=user_id, cause=str(error))
            return None
