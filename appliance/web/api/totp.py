"""The user's two-factor authentication: /v1/account/totp.

Setup has two steps: get a secret, then prove with a code that an app has it.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused, invalid
from appliance.keys.secrets import MAX_PASSWORD_BYTES, key_uri, plain_code
from appliance.model.accounts import User
from appliance.store.audit import about
from appliance.web.answer import DeletedAnswer, RequestId, Time, time_or_none
from appliance.web.app import Routes, actor_of, client_address, request_id
from appliance.web.login_check import CODE_REFUSED, SecondFactorNeeded
from appliance.web.operations import Tag, for_people

CurrentPassword = Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES)]
SecondFactorCode = Annotated[str, Meta(min_length=6, max_length=64, examples=["123456"])]

NOT_BEGUN = "Setup has not started. Get a secret first with POST /v1/account/totp."
NOT_CURRENT = "password: wrong password. Enter your current password."
NOT_ON = "Two-factor authentication is already off."


class TotpAnswer(msgspec.Struct):
    """The state of two-factor authentication."""

    enabled: Annotated[bool, Meta(description="Whether two-factor authentication is on.")]
    required: Annotated[bool, Meta(description="Whether the installation requires it for this user.")]
    enabled_at: Annotated[Time | None, Meta(description="Time it was turned on; null if it is off.")]
    recovery_codes_left: Annotated[int, Meta(description="Number of unused recovery codes.")]
    request_id: RequestId


class TotpSecretAnswer(msgspec.Struct):
    """A secret for an authenticator app, shown only once. It is inactive until confirmed."""

    secret: Annotated[str, Meta(description="Secret in Base32, to type into an app.")]
    uri: Annotated[str, Meta(description="`otpauth:` URI for the QR code.")]
    request_id: RequestId


class TotpConfirmRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The password and a code of the new secret."""

    password: Annotated[CurrentPassword, Meta(description="Current password.")]
    code: Annotated[SecondFactorCode, Meta(description="Current code from the app.")]


class RecoveryCodesAnswer(msgspec.Struct):
    """Recovery codes for a login without the app. They are only in this response."""

    recovery_codes: Annotated[list[str], Meta(description="Ten codes. Each works once instead of the app.")]
    request_id: RequestId


class TotpRemovalRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The password and a code."""

    password: Annotated[CurrentPassword, Meta(description="Current password.")]
    code: Annotated[SecondFactorCode, Meta(description="Current code from the app, or a recovery code.")]


class TotpRoutes(Routes):
    tag = Tag.PEOPLE

    @for_people("GET /v1/account/totp", TotpAnswer)
    async def get_totp(self, user: User) -> TotpAnswer:
        """Read whether two-factor authentication is on."""
        factor = await self.store.second_factors.of(user.id)
        since = None if factor is None else factor.confirmed_at
        left = await self.store.second_factors.recovery_codes_left(user.id)
        required = self.services.auth.demands_totp(user)
        return TotpAnswer(since is not None, required, time_or_none(since), left, request_id())

    @for_people("POST /v1/account/totp", (201, TotpSecretAnswer, "The secret."), Code.CONFLICT)
    async def begin_totp(self, user: User) -> TotpSecretAnswer:
        """Start two-factor setup: get a secret for an authenticator app (RFC 6238).

        Nothing changes until you send a code to `POST /v1/account/totp/confirm`.
        """
        secret, sealed = self.services.logins.totp.fresh(user.id)
        await self.store.second_factors.begin(user.id, sealed)
        uri = key_uri(secret, self.services.config.server.hostname, user.email)
        return TotpSecretAnswer(secret, uri, request_id())

    @for_people(
        "POST /v1/account/totp/confirm",
        RecoveryCodesAnswer,
        Code.CONFLICT,
        body=TotpConfirmRequest,
        action="totp.enabled",
    )
    async def confirm_totp(self, user: User, body: TotpConfirmRequest) -> RecoveryCodesAnswer:
        """Turn on two-factor authentication with the password and a code from the app.

        From now on, a login requires a code, and the user's other sessions end. The ten recovery codes are only in this
        response. A wrong password is 403 and counts as a failed login.
        """
        factor = await self.store.second_factors.of(user.id)
        if factor is None or factor.confirmed_at is not None:
            raise Refused(Code.CONFLICT, NOT_BEGUN)
        if not await self.services.logins.is_right(user.email, body.password, user, client_address()):
            raise Refused(Code.FORBIDDEN, NOT_CURRENT)
        step = await self.services.logins.step_of(user.id, plain_code(body.code))
        if step is None:
            raise invalid("code", "wrong code. Check that the clock of the app's device is right.")
        codes = self.services.logins.totp.recovery_codes()
        about(user.email)
        await self.store.second_factors.confirm(user.id, factor.secret, step, [plain_code(code) for code in codes])
        _, claims = await self.current_user()
        await self.store.sessions.end_all(user.id, but=claims.session_id)
        self.services.auth.forget()
        return RecoveryCodesAnswer(codes, request_id())

    @for_people("DELETE /v1/account/totp", DeletedAnswer, Code.NOT_FOUND, body=TotpRemovalRequest)
    async def remove_totp(self, user: User, body: TotpRemovalRequest) -> DeletedAnswer:
        """Turn off two-factor authentication with the password and a code or recovery code.

        A wrong password or code is 403 and counts as a failed login.
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
        # Recorded here, not as the operation's action: a rejected code is stored as used, which is not a change.
        async with self.store.audit.noting(actor_of(user), "totp.disabled", address, (user.account_id,), user.email):
            await self.store.second_factors.remove(user.id)
        return DeletedAnswer(True, request_id())
