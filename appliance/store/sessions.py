"""Logins to the dashboard: sessions, renewed one generation after the other, and second factors."""

from collections.abc import Sequence

from msgspec import Struct

from appliance.errors import Code, Refused
from appliance.model.accounts import SecondFactor, User
from appliance.model.dashboard import LoginSession
from appliance.store.access import sha256
from appliance.store.engine import Bulk, StorePart, Tx, first, one, run, transaction
from appliance.times import DAY, SECOND

SESSION_LIFETIME = 7 * DAY  # without a renewal
SESSION_MAXIMUM = 30 * DAY  # since the login, however often renewed
# The replaced cookie stays valid this long for the browser that replaced it: restored windows renew at the same time,
# and over plain HTTP they share no lock.
REPLACED_COOKIE_GRACE = 5 * SECOND
SESSIONS_PER_USER = 100  # per user; a new session replaces the one renewed longest ago

_COLUMNS = "id, user_id, generation, address, user_agent, created_at, renewed_at, expires_at"
_BEGIN = f"""INSERT INTO sessions ({_COLUMNS})
    SELECT :id, id, 0, :address, :user_agent, :now, :now, :expires_at FROM users
    WHERE id = :user_id AND token_epoch = :epoch RETURNING {_COLUMNS}"""
_MAKE_ROOM = """DELETE FROM sessions WHERE user_id = :user_id AND id NOT IN
        (SELECT id FROM sessions WHERE user_id = :user_id ORDER BY renewed_at DESC, id DESC LIMIT :most)"""
_NEW_EXPIRY = f"""CASE WHEN created_at + {SESSION_MAXIMUM} < :expires_at THEN created_at + {SESSION_MAXIMUM}
    ELSE :expires_at END"""
_RENEW = f"""UPDATE sessions SET generation = generation + 1, address = :address, user_agent = :user_agent,
        renewed_at = :now, expires_at = {_NEW_EXPIRY}
    WHERE id = :id AND generation = :generation AND expires_at > :now AND created_at + {SESSION_MAXIMUM} > :now
    RETURNING {_COLUMNS}"""
_JUST_RENEWED = f"""SELECT {_COLUMNS} FROM sessions
    WHERE id = :id AND generation = :generation + 1 AND expires_at > :now
        AND renewed_at > :now - {REPLACED_COOKIE_GRACE} AND address = :address AND user_agent = :user_agent"""
_EXTEND = f"UPDATE sessions SET renewed_at = :now, expires_at = {_NEW_EXPIRY} WHERE id = :id"
_END_REUSED = "DELETE FROM sessions WHERE id = :id AND generation > :generation RETURNING id"
_END = "DELETE FROM sessions WHERE id = :id AND user_id = :user_id RETURNING id"
_END_ALL = "DELETE FROM sessions WHERE user_id = :user_id AND id <> :but RETURNING id"
_OF_USER = f"""SELECT {_COLUMNS} FROM sessions WHERE user_id = :user_id AND expires_at > :now
    ORDER BY renewed_at DESC, id DESC"""
_ADDRESSES = "SELECT DISTINCT address FROM sessions WHERE user_id = :user_id AND expires_at > :now"


class Renewal(Struct, frozen=True):
    """The result for a cookie: the next generation of its session; or none, and whether that ended a session."""

    session: LoginSession | None
    reused: bool = False


class Sessions(StorePart):
    @transaction
    def begin(self, tx: Tx, user: User, address: str, user_agent: str) -> LoginSession | None:
        """Begin a session; None if the password was changed since the user was read."""
        row = {"id": self.env.identifier("ses"), "user_id": user.id, "epoch": user.token_epoch}
        row |= {"address": address, "user_agent": user_agent}
        begun = one(tx, LoginSession, _BEGIN, {**row, **self._times()})
        if begun is not None:
            run(tx, _MAKE_ROOM, {"user_id": user.id, "most": SESSIONS_PER_USER})
        return begun

    @transaction
    def renew(self, tx: Tx, session_id: str, generation: int, address: str, user_agent: str) -> Renewal:
        """Advance to the next generation, or return one just reached. An older cookie is a copy: end the session."""
        row = {"id": session_id, "generation": generation, "address": address, "user_agent": user_agent}
        result = {**row, **self._times()}
        session = one(tx, LoginSession, _RENEW, result) or one(tx, LoginSession, _JUST_RENEWED, result)
        return Renewal(session, reused=session is None and first(tx, _END_REUSED, row) is not None)

    async def extend(self, session_id: str) -> None:
        """Extend a session without a new generation: it was renewed by its token, not its cookie."""
        await self.engine.change(_EXTEND, {"id": session_id, **self._times()})

    async def end(self, session_id: str, user_id: str) -> bool:
        return bool(await self.engine.change(_END, {"id": session_id, "user_id": user_id}))

    async def end_all(self, user_id: str, but: str = "") -> int:
        return len(await self.engine.change(_END_ALL, {"user_id": user_id, "but": but}))

    async def of(self, user_id: str) -> list[LoginSession]:
        return await self.engine.all(LoginSession, _OF_USER, {"user_id": user_id, "now": self.env.now()})

    async def addresses(self, user_id: str) -> list[str]:
        return await self.engine.all(str, _ADDRESSES, {"user_id": user_id, "now": self.env.now()})

    def _times(self) -> dict[str, int]:
        now = self.env.now()
        return {"now": now, "expires_at": now + SESSION_LIFETIME}


# ---- second factors (TOTP) and recovery codes: each code is good once

_FACTOR = "SELECT secret, confirmed_at, last_step FROM second_factors WHERE user_id = :user_id"
_BEGIN_FACTOR = """INSERT INTO second_factors (user_id, secret, created_at, last_step)
    VALUES (:user_id, :secret, :now, 0)
    ON CONFLICT (user_id) DO UPDATE SET secret = excluded.secret, created_at = excluded.created_at
    WHERE second_factors.confirmed_at IS NULL RETURNING user_id"""
_CONFIRM = """UPDATE second_factors SET confirmed_at = :now, last_step = :step
    WHERE user_id = :user_id AND secret = :secret AND confirmed_at IS NULL RETURNING user_id"""
_USE_STEP = """UPDATE second_factors SET last_step = :step
    WHERE user_id = :user_id AND confirmed_at IS NOT NULL AND last_step < :step RETURNING user_id"""
_FORGET_CODES = "DELETE FROM recovery_codes WHERE user_id = :user_id"
_ADD_CODES = Bulk("INSERT INTO recovery_codes (user_id, code_sha256) VALUES {(?, ?b)}")
_USE_CODE = "DELETE FROM recovery_codes WHERE user_id = :user_id AND code_sha256 = :sha256 RETURNING user_id"
_CODES_LEFT = "SELECT count(*) FROM recovery_codes WHERE user_id = :user_id"
_REMOVE_FACTOR = "DELETE FROM second_factors WHERE user_id = :user_id RETURNING confirmed_at"


class SecondFactors(StorePart):
    async def of(self, user_id: str) -> SecondFactor | None:
        """The second factor, which may still be unconfirmed."""
        return await self.engine.one(SecondFactor, _FACTOR, {"user_id": user_id})

    async def begin(self, user_id: str, secret: bytes) -> None:
        """Store a sealed secret until it is confirmed; it replaces an unconfirmed one."""
        if not await self.engine.change(_BEGIN_FACTOR, {"user_id": user_id, "secret": secret, "now": self.env.now()}):
            raise Refused(Code.CONFLICT, "The second factor is on already: turn it off first.")

    @transaction
    def confirm(self, tx: Tx, user_id: str, secret: bytes, step: int, codes: Sequence[str]) -> None:
        """Activate the factor with this secret, use up the step's code, and store recovery codes."""
        result = {"user_id": user_id, "secret": secret, "step": step, "now": self.env.now()}
        hashed = [(user_id, sha256(code)) for code in codes]
        if first(tx, _CONFIRM, result) is None:
            raise Refused(Code.CONFLICT, "The second factor was changed meanwhile: begin again.")
        run(tx, _FORGET_CODES, result)
        _ADD_CODES.run(tx, hashed)

    async def use_step(self, user_id: str, step: int) -> bool:
        """Use up this step's code and all earlier ones; False if it was used."""
        return bool(await self.engine.change(_USE_STEP, {"user_id": user_id, "step": step}))

    async def use_recovery_code(self, user_id: str, code: str) -> bool:
        return bool(await self.engine.change(_USE_CODE, {"user_id": user_id, "sha256": sha256(code)}))

    async def recovery_codes_left(self, user_id: str) -> int:
        return await self.engine.one(int, _CODES_LEFT, {"user_id": user_id}) or 0

    @transaction
    def remove(self, tx: Tx, user_id: str) -> bool:
        run(tx, _FORGET_CODES, {"user_id": user_id})
        row = first(tx, _REMOVE_FACTOR, {"user_id": user_id})
        return row is not None and row[0] is not None
