"""Sessions of the dashboard: begun by a login, renewed one generation after the other, and ended."""

from dataclasses import dataclass

from appliance.model.accounts import User
from appliance.model.dashboard import LoginSession
from appliance.store.engine import Row, StorePart, Tx, first, one, rows, run
from appliance.times import DAY, SECOND

SESSION_LIFETIME = 7 * DAY  # a session lasts without being renewed
SESSION_MAXIMUM = 30 * DAY  # from the login on, however often it is renewed: then the user logs in again
# The cookie before the current one is good for so long after it was replaced, to the browser that replaced it: windows
# that are restored together renew at the same time, and over plain HTTP they have no lock in common.
REPLACED_COOKIE_GRACE = 5 * SECOND
SESSIONS_PER_USER = 100  # sessions of one user; the one that was renewed longest ago makes room

# Only these names of our own columns are put into SQL (S608).
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


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result for a cookie: the session in its next generation; or none, and whether that ended one."""

    session: LoginSession | None
    reused: bool = False


class Sessions(StorePart):
    async def begin(self, user: User, address: str, user_agent: str) -> LoginSession | None:
        """A new session; none if the password was changed since the user was read, for then it was for the old one."""
        row = {"id": self.env.identifier("ses"), "user_id": user.id, "epoch": user.token_epoch}
        row |= {"address": address, "user_agent": user_agent}

        def work(tx: Tx) -> list[Row]:
            begun = rows(tx, _BEGIN, {**row, **self._times()})
            run(tx, _MAKE_ROOM, {"user_id": user.id, "most": SESSIONS_PER_USER})
            return begun

        begun = await self.engine.write(work)
        return LoginSession(*begun[0]) if begun else None

    async def renew(self, session_id: str, generation: int, address: str, user_agent: str) -> Renewal:
        """Advance to the next generation, or keep one just reached. An older generation is a copy: the session ends."""
        row = {"id": session_id, "generation": generation, "address": address, "user_agent": user_agent}

        def work(tx: Tx) -> Renewal:
            result = {**row, **self._times()}
            session = one(tx, LoginSession, _RENEW, result) or one(tx, LoginSession, _JUST_RENEWED, result)
            return Renewal(session, reused=session is None and first(tx, _END_REUSED, row) is not None)

        return await self.engine.write(work)

    async def extend(self, session_id: str) -> None:
        """Let a session last longer without a new generation: it was renewed by its token, not by its cookie."""
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
