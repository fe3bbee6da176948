"""Sessions of the dashboard: begun by a login, renewed one generation after the other, and ended."""

from dataclasses import dataclass

import apsw

from appliance.model.dashboard import LoginSession
from appliance.model.mail import User
from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.sql import first, rows, run
from appliance.times import DAY

SESSION_LIFETIME = 7 * DAY  # a session lasts without being renewed
SESSIONS_PER_USER = 100  # sessions of one user; the one that was renewed longest ago makes room

_COLUMNS = "id, user_id, generation, address, user_agent, created_at, renewed_at, expires_at"
_BEGIN = f"""INSERT INTO sessions ({_COLUMNS})
    SELECT :id, id, 0, :address, :user_agent, :now, :now, :expires_at FROM users
    WHERE id = :user_id AND token_epoch = :epoch RETURNING {_COLUMNS}"""  # noqa: S608 - the names of our own columns, as below
_MAKE_ROOM = """DELETE FROM sessions WHERE user_id = :user_id AND id NOT IN
        (SELECT id FROM sessions WHERE user_id = :user_id ORDER BY renewed_at DESC, id DESC LIMIT :most)"""
_RENEW = f"""UPDATE sessions SET generation = generation + 1, address = :address, user_agent = :user_agent,
        renewed_at = :now, expires_at = :expires_at
    WHERE id = :id AND generation = :generation AND expires_at > :now RETURNING {_COLUMNS}"""  # noqa: S608
_EXTEND = "UPDATE sessions SET renewed_at = :now, expires_at = :expires_at WHERE id = :id"
_END_REUSED = "DELETE FROM sessions WHERE id = :id AND generation > :generation RETURNING id"
_END = "DELETE FROM sessions WHERE id = :id AND user_id = :user_id RETURNING id"
_END_ALL = "DELETE FROM sessions WHERE user_id = :user_id RETURNING id"
_OF_USER = f"""SELECT {_COLUMNS} FROM sessions WHERE user_id = :user_id AND expires_at > :now
    ORDER BY renewed_at DESC, id DESC"""  # noqa: S608
_ADDRESSES = "SELECT DISTINCT address FROM sessions WHERE user_id = :user_id AND expires_at > :now"


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result for a cookie: the session in its next generation; or none, and whether that ended one."""

    session: LoginSession | None
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Sessions:
    engine: Engine
    outside: Outside

    async def begin(self, user: User, address: str, user_agent: str) -> LoginSession | None:
        """A new session; none if the password was changed since the user was read, for then it was for the old one."""
        row = {"id": self.outside.identifier("ses"), "user_id": user.id, "epoch": user.token_epoch}
        row |= {"address": address, "user_agent": user_agent}

        def work(c: apsw.Connection) -> LoginSession | None:
            found = first(c, _BEGIN, {**row, **self._times()})
            run(c, _MAKE_ROOM, {"user_id": user.id, "most": SESSIONS_PER_USER})
            return None if found is None else LoginSession(*found)

        return await self.engine.write(work)

    async def renew(self, session_id: str, generation: int, address: str, user_agent: str) -> Renewal:
        """Go on to the next generation. A client with an older one has a copy: then the session ends."""
        row = {"id": session_id, "generation": generation, "address": address, "user_agent": user_agent}

        def work(c: apsw.Connection) -> Renewal:
            found = first(c, _RENEW, {**row, **self._times()})
            if found is not None:
                return Renewal(LoginSession(*found))
            ended = first(c, _END_REUSED, {"id": session_id, "generation": generation})
            return Renewal(None, reused=ended is not None)

        return await self.engine.write(work)

    async def extend(self, session_id: str) -> None:
        """Let a session last longer without a new generation: it was renewed by its token, not by its cookie."""
        row = {"id": session_id, **self._times()}
        await self.engine.write(lambda c: run(c, _EXTEND, row))

    async def end(self, session_id: str, user_id: str) -> bool:
        row = {"id": session_id, "user_id": user_id}
        return await self.engine.write(lambda c: first(c, _END, row)) is not None

    async def end_all(self, user_id: str) -> int:
        return len(await self.engine.write(lambda c: rows(c, _END_ALL, {"user_id": user_id})))

    def of(self, user_id: str) -> list[LoginSession]:
        wanted = {"user_id": user_id, "now": self.outside.now()}
        return [LoginSession(*row) for row in self.engine.read(lambda c: rows(c, _OF_USER, wanted))]

    def addresses(self, user_id: str) -> list[str]:
        wanted = {"user_id": user_id, "now": self.outside.now()}
        return [address for (address,) in self.engine.read(lambda c: rows(c, _ADDRESSES, wanted))]

    def _times(self) -> dict[str, int]:
        now = self.outside.now()
        return {"now": now, "expires_at": now + SESSION_LIFETIME}
