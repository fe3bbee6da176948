"""The second factor of the user who has logged in: /v1/account/totp.

It is enrolled in two steps: the first one shows the secret, the second one proves by a code that an app has it.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused, invalid
from appliance.keys.passwords import MAX_PASSWORD_BYTES
from appliance.keys.totp import key_uri, plain_code
from appliance.model.accounts import User
from appliance.store.audit import about
from appliance.web.answer import DeletedAnswer, Time, time_or_none
from appliance.web.app import Routes, actor_of, client_address, request_id
from appliance.web.login_check import CODE_REFUSED, SecondFactorNeeded
from appliance.web.operations import for_people

CurrentPassword = Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES)]
SecondFactorCode = Annotated[str, Meta(min_length=6, max_length=64, examples=["123456"])]

NOT_BEGUN = "No second factor waits to be confirmed: ask for a secret first, with POST /v1/account/totp."
NOT_CURRENT = "password: this is not the current password"
NOT_ON = "There is no second factor to turn off."


class TotpAnswer(msgspec.Struct):
    """Whether the second factor is on."""

    enabled: bool
    required: bool
    enabled_at: Time | None
    recovery_codes_left: int
    request_id: str


class TotpSecretAnswer(msgspec.Struct):
    """A secret for an authenticator app, shown only here; not in force before it is confirmed."""

    secret: str
    uri: str
    request_id: str


class TotpConfirmRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a confirmation."""

    password: CurrentPassword
    code: SecondFactorCode


class RecoveryCodesAnswer(msgspec.Struct):
    """Codes for a login without the app, each good once; they are shown only here."""

    recovery_codes: list[str]
    request_id: str


class TotpRemovalRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a removal."""

    password: CurrentPassword
    code: SecondFactorCode


class TotpRoutes(Routes):
    @for_people("GET /v1/account/totp", (200, TotpAnswer, "Whether it is on."))
    async def get_totp(self, user: User) -> TotpAnswer:
        """Tell whether the user's second factor is on."""
        found = await self.store.second_factors.of(user.id)
        since = None if found is None else found.confirmed_at
        left = await self.store.second_factors.recovery_codes_left(user.id)
        required = self.services.auth.demands_totp(user)
        return TotpAnswer(since is not None, required, time_or_none(since), left, request_id())

    @for_people("POST /v1/account/totp", (201, TotpSecretAnswer, "The secret."), Code.CONFLICT)
    async def begin_totp(self, user: User) -> TotpSecretAnswer:
        """Begin to turn on the second factor: get a secret for an authenticator app (RFC 6238).

        Nothing changes before a code of it is given to `POST /v1/account/totp/confirm`.
        """
        secret, sealed = self.services.logins.totp.fresh(user.id)
        await self.store.second_factors.begin(user.id, sealed)
        uri = key_uri(secret, self.services.config.server.hostname, user.email)
        return TotpSecretAnswer(secret, uri, request_id())

    @for_people(
        "POST /v1/account/totp/confirm",
        (200, RecoveryCodesAnswer, "It is on; the recovery codes."),
        Code.CONFLICT,
        body=TotpConfirmRequest,
        action="totp.enabled",
    )
    async def confirm_totp(self, user: User, body: TotpConfirmRequest) -> RecoveryCodesAnswer:
        """Turn on the second factor with the password and a code of the app; get ten recovery codes.

        From then on a login needs a code, and the user's other sessions end. The recovery codes are in this answer
        only. A wrong password is 403, and counts as a failed login.
        """
        found = await self.store.second_factors.of(user.id)
        if found is None or found.confirmed_at is not None:
            raise Refused(Code.CONFLICT, NOT_BEGUN)
        if not await self.services.logins.is_right(user.email, body.password, user, client_address()):
            raise Refused(Code.FORBIDDEN, NOT_CURRENT)
        step = await self.services.logins.step_of(user.id, plain_code(body.code))
        if step is None:
            raise invalid("code", "this is not the app's current code; check that the clock of its device is right")
        codes = self.services.logins.totp.recovery_codes()
        about(user.email)
        await self.store.second_factors.confirm(user.id, found.secret, step, [plain_code(each) for each in codes])
        _, claims = await self.current_user()
        await self.store.sessions.end_all(user.id, but=claims.session_id)
        self.services.auth.forget()
        return RecoveryCodesAnswer(codes, request_id())

    @for_people(
        "DELETE /v1/account/totp",
        (200, DeletedAnswer, "It is off."),
        Code.NOT_FOUND,
        body=TotpRemovalRequest,
    )
    async def remove_totp(self, user: User, body: TotpRemovalRequest) -> DeletedAnswer:
        """Turn off the second factor, with the password and a code or a recovery code.

        A wrong password or code is 403, and counts as a failed login.
        """
        if not user.has_totp:
            raise Refused(Code.NOT_FOUND, NOT_ON)
        logins, address = self.services.logins, client_address()
        try:
            right = await logins.is_right_with_code(user.email, body.password, body.code, user, address)
        except SecondFactorNeeded as error:
            raise Refused(Code.FORBIDDEN, f"code: {CODE_REFUSED}") from error
        if not right:
            raise Refused(Code.FORBIDDEN, NOT_CURRENT)
        # Not as the operation's own action: a code that is refused is written down as used, and is no change.
        async with self.store.audit.noting(actor_of(user), "totp.disabled", address, (user.account_id,), user.email):
            await self.store.second_factors.remove(user.id)
        return DeletedAnswer(True, request_id())
