"""Second factors of users (TOTP) and their recovery codes.

Invariant: a code and a recovery code are good once: of several that use one at the same time, one succeeds.
"""

from collections.abc import Iterable

from appliance.errors import Code, Refused
from appliance.model.accounts import SecondFactor
from appliance.store.access import sha256
from appliance.store.engine import Bulk, StorePart, Tx, first, run

ALREADY_ON = "The second factor is on already: turn it off first."

_FIND = "SELECT secret, confirmed_at, last_step FROM second_factors WHERE user_id = :user_id"
_BEGIN = """INSERT INTO second_factors (user_id, secret, created_at, last_step) VALUES (:user_id, :secret, :now, 0)
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
_REMOVE = "DELETE FROM second_factors WHERE user_id = :user_id RETURNING confirmed_at"


class SecondFactors(StorePart):
    async def of(self, user_id: str) -> SecondFactor | None:
        """The second factor, which may not be in force yet."""
        return await self.engine.one(SecondFactor, _FIND, {"user_id": user_id})

    async def begin(self, user_id: str, secret: bytes) -> None:
        """Keep a sealed secret until a code of it is given; an earlier one that was not confirmed goes."""
        if not await self.engine.change(_BEGIN, {"user_id": user_id, "secret": secret, "now": self.env.now()}):
            raise Refused(Code.CONFLICT, ALREADY_ON)

    async def confirm(self, user_id: str, secret: bytes, step: int, codes: Iterable[str]) -> None:
        """Put the factor with this sealed secret in force, the code of that step used, with recovery codes."""
        result = {"user_id": user_id, "secret": secret, "step": step, "now": self.env.now()}
        hashed = [(user_id, sha256(code)) for code in codes]

        def work(tx: Tx) -> None:
            if first(tx, _CONFIRM, result) is None:
                raise Refused(Code.CONFLICT, "The second factor was changed meanwhile: begin again.")
            run(tx, _FORGET_CODES, result)
            _ADD_CODES.run(tx, hashed)

        await self.engine.write(work)

    async def use_step(self, user_id: str, step: int) -> bool:
        """Spend the code of this step, and of all before; False if it was spent."""
        return bool(await self.engine.change(_USE_STEP, {"user_id": user_id, "step": step}))

    async def use_recovery_code(self, user_id: str, code: str) -> bool:
        return bool(await self.engine.change(_USE_CODE, {"user_id": user_id, "sha256": sha256(code)}))

    async def recovery_codes_left(self, user_id: str) -> int:
        return await self.engine.one(int, _CODES_LEFT, {"user_id": user_id}) or 0

    async def remove(self, user_id: str) -> bool:
        def work(tx: Tx) -> bool:
            run(tx, _FORGET_CODES, {"user_id": user_id})
            row = first(tx, _REMOVE, {"user_id": user_id})
            return row is not None and row[0] is not None

        return await self.engine.write(work)
