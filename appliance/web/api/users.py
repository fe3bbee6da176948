"""The people of an account, their roles, and invitations by a link that is shown once: /v1/users.

Administrators see the people of every account, and make links that set another password: /v1/admin/users.
"""

from collections.abc import Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.intake import account_rules
from appliance.intake.limits import RequestRate
from appliance.keys.passwords import MAX_PASSWORD_BYTES, MIN_PASSWORD_CHARACTERS, check_new
from appliance.model.accounts import AccountRole, OwnedAccess, PasswordLink, Permission, Person, Role, User
from appliance.model.dashboard import Actor
from appliance.net.address_policy import site_of
from appliance.store.audit import about, concerns
from appliance.web.answer import DeletedAnswer, Object, Time, object_from
from appliance.web.app import ApiServices, Routes, choice, client_address, request_id
from appliance.web.operations import ALWAYS, WITH_BODY, Operation, for_admins, for_customers, identifier, parameter

LINK_REFUSED = "This link is not good any more: it was used, or withdrawn, or it has expired. Ask for a new one."
NO_USER = "There is no such user."
# The user of a link learns whether its address logs in to another account: these bound how many are tested so.
INVITATIONS_AT_ONCE = 100  # as many people as an account may have
INVITATIONS_PER_SECOND = 20 / 3600
TOO_MANY_INVITATIONS = "This account has invited 100 people; now one may be invited every 3 minutes. Retry later."

_USER_ID = identifier("The user's id.", "^usr_[0-9a-f]{32}$")
_PERSON_ID = identifier("The id of a user or an invitation.", "^(usr|inv)_[0-9a-f]{32}$")


class KeepKeys(StrEnum):
    """Whether the API keys and SMTP credentials of a removed user keep working."""

    TRUE = "true"
    FALSE = "false"


_KEEP_KEYS = parameter(
    "keep_keys",
    "query",
    "`true`: the API keys and SMTP credentials that the user created keep working. Default: they are revoked.",
    {"type": "string", "enum": list(KeepKeys), "default": "false"},
)


class InvitationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an invitation."""

    email: Annotated[str, Meta(min_length=1, max_length=254, examples=["ann@example.com"])]
    role: AccountRole


class UserRoleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a change of a user's role."""

    role: AccountRole


class AcceptanceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body that sets a password by a link."""

    token: Annotated[str, Meta(min_length=1, max_length=100)]
    password: Annotated[str, Meta(min_length=MIN_PASSWORD_CHARACTERS, max_length=MAX_PASSWORD_BYTES)]


class OwnedKeyObject(msgspec.Struct):
    """An API key that works; its name, or its last four characters if it has none."""

    id: str
    name: str


class OwnedCredentialObject(msgspec.Struct):
    """An SMTP credential that works."""

    username: str
    name: str


class UserObject(msgspec.Struct):
    """A user of the account, with the API keys and SMTP credentials that are revoked if the user is removed."""

    id: str
    email: str
    role: AccountRole
    admin: bool
    totp: bool
    created_at: Time
    last_seen_at: Time | None
    api_keys: list[OwnedKeyObject]
    smtp_credentials: list[OwnedCredentialObject]


class UserAnswer(UserObject):
    """One user on its own."""

    request_id: str


class InvitationObject(msgspec.Struct):
    """An invitation that was not accepted yet."""

    id: str
    email: str
    role: AccountRole
    created_at: Time
    expires_at: Time


class UsersAnswer(msgspec.Struct):
    """All people of an account; `next` is always null, for there are at most 100."""

    users: list[UserObject]
    invitations: list[InvitationObject]
    next: str | None
    request_id: str


class RevokedAccessObject(msgspec.Struct):
    """The ids of API keys and the usernames of SMTP credentials that no longer work."""

    api_keys: list[str]
    smtp_credentials: list[str]


class RemovedUserAnswer(msgspec.Struct):
    """A user was removed, or an invitation withdrawn."""

    deleted: bool
    revoked: RevokedAccessObject
    request_id: str


class PasswordLinkAnswer(InvitationObject):
    """A link that sets a password, once; it is shown only here."""

    link: str
    request_id: str


class AcceptedAnswer(msgspec.Struct):
    """The password was set: log in with it."""

    email: str
    request_id: str


class _People(Routes):
    async def _people(self, account_id: str) -> UsersAnswer:
        access = await self.store.access.of_people(account_id)
        users = [_shown(UserObject, each, access) for each in await self.store.people.of(account_id)]
        open_ones = [
            object_from(InvitationObject, each, role=each.account_role)
            for each in await self.store.people.invitations(account_id)
        ]
        return UsersAnswer(users, open_ones, None, request_id())

    async def _user(self, user_id: str) -> User:
        user = await self.store.accounts.user(user_id)
        if user is None:
            raise Refused(Code.NOT_FOUND, NO_USER)
        about(user.email)
        concerns(user.account_id)
        return user

    async def _change_role(self, by: User, account_id: str, user_id: str, role: AccountRole) -> UserAnswer:
        about((await self.store.people.one(account_id, user_id)).email, {"role": role})
        await self.store.people.set_role(account_id, user_id, role, by_admin=by.role is Role.ADMIN)
        self.services.auth.forget()
        access = await self.store.access.of_people(account_id)
        return _shown(UserAnswer, await self.store.people.one(account_id, user_id), access, request_id=request_id())

    def _with_link(self, link: PasswordLink, token: str) -> PasswordLinkAnswer:
        shown = account_rules.password_link(self.services.config.http.base_url, link.email, token)
        return object_from(PasswordLinkAnswer, link, role=link.account_role, link=shown, request_id=request_id())


class UserRoutes(_People):
    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.invitations = RequestRate(INVITATIONS_PER_SECOND, services.env, INVITATIONS_AT_ONCE, TOO_MANY_INVITATIONS)

    @for_customers("GET /v1/users", (200, UsersAnswer, "The users and the open invitations."))
    async def list_users(self, user: User) -> UsersAnswer:
        """List the people of the account, and the invitations that are open."""
        return await self._people(user.account_id)

    @for_customers(
        "POST /v1/users",
        (201, PasswordLinkAnswer, "The invitation, with its link."),
        Code.CONFLICT,
        body=InvitationRequest,
        permission=Permission.OWN,
        action="user.invited",
    )
    async def invite_user(self, user: User, body: InvitationRequest) -> PasswordLinkAnswer:
        """Invite a person to the account, with a role.

        The answer has a link, which is shown only here, and which you give to the person: it is good for seven days,
        and once. Another invitation of the same address replaces it. An address can log in to one account only: if it
        logs in to another one, the person is told so when they use the link.
        """
        email = account_rules.login_email(body.email)
        self.invitations.take(user.account_id)
        about(email, {"role": body.role})
        return self._with_link(*await self.store.people.invite(user.account_id, email, body.role))

    @for_customers(
        "POST /v1/users/{id}/role",
        (200, UserAnswer, "The user as it is now."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        body=UserRoleRequest,
        parameters=(_USER_ID,),
        permission=Permission.OWN,
        action="user.role_changed",
    )
    async def change_user_role(self, user: User, user_id: str, body: UserRoleRequest) -> UserAnswer:
        """Give a user another role. It applies from the next request on, and an account keeps at least one owner.

        A user who becomes a viewer keeps only what a viewer may do: the user's API keys with the scope `full` or
        `manage` become `read`, and those with the scope `send` and the SMTP credentials are revoked. Only an
        administrator may change the role of an administrator.
        """
        return await self._change_role(user, user.account_id, user_id, body.role)

    @for_customers(
        "DELETE /v1/users/{id}",
        (200, RemovedUserAnswer, "Removed."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        parameters=(_PERSON_ID, _KEEP_KEYS),
        permission=Permission.OWN,
        action="user.removed",
    )
    async def remove_user(self, user: User, person_id: str) -> RemovedUserAnswer:
        """Remove a user from the account, or withdraw an invitation.

        The user's sessions end at once, and the API keys and SMTP credentials that the user created are revoked. With
        `keep_keys=true` they keep working and belong to the account. Only an administrator may remove an administrator,
        and the installation keeps at least one.
        """
        revoked = OwnedAccess()
        keep_keys = choice("keep_keys", KeepKeys) is KeepKeys.TRUE
        if person_id.startswith("inv_"):
            about(made=lambda withdrawn: str(withdrawn[0][0]), action="invitation.withdrawn")  # the address
            await self.store.people.withdraw(user.account_id, person_id)
        else:
            about(details={"keep_keys": "true"} if keep_keys else None, made=attrgetter("email"))
            by_admin = user.role is Role.ADMIN
            removed = await self.store.people.remove(user.account_id, person_id, by_admin=by_admin, keep_keys=keep_keys)
            revoked = removed.revoked
            self.services.auth.forget()
        ended = RevokedAccessObject(list(revoked.api_keys), list(revoked.smtp_credentials))
        return RemovedUserAnswer(True, ended, request_id())

    @Operation(
        "POST /v1/auth/invitation",
        (200, AcceptedAnswer, "The password is set."),
        (*WITH_BODY, Code.UNAUTHORIZED, Code.CONFLICT, *ALWAYS),
        AcceptanceRequest,
    )
    async def accept_invitation(self, wanted: AcceptanceRequest) -> AcceptedAnswer:
        """Accept an invitation, or set another password by a link of an administrator.

        The token is in the link, behind `token=`. A wrong one is refused as a wrong credential is, after a second.
        """
        password = check_new(wanted.password)
        found = await self.store.people.open_link(wanted.token)
        if found is not None:  # nothing is hashed for a token that is none
            address = client_address()
            password_hash = await self.services.hashing.hashed(password, site_of(address))
            actor, action = Actor("user", found.email), "user.password_changed" if found.user_id else "user.joined"
            async with self.store.audit.noting(actor, action, address, (found.account_id,), always=False):
                found = await self.store.people.use_link(wanted.token, password_hash)
        if found is None:
            refused = await self.services.auth.credentials.wrong_guess(client_address())
            raise Refused(refused.code, LINK_REFUSED, retry_after=refused.retry_after)
        self.services.auth.forget()
        return AcceptedAnswer(found.email, request_id())


class AdminUserRoutes(_People):
    @for_admins(
        "GET /v1/admin/accounts/{id}/users",
        (200, UsersAnswer, "The users and the open invitations."),
        Code.NOT_FOUND,
        parameters=(identifier("The account's id.", "^acc_[0-9a-f]{32}$"),),
    )
    async def list_managed_users(self, _admin: User, account_id: str) -> UsersAnswer:
        """List the people of an account."""
        return await self._people((await self.store.accounts.find(account_id)).id)

    @for_admins(
        "POST /v1/admin/users/{id}/role",
        (200, UserAnswer, "The user as it is now."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        body=UserRoleRequest,
        parameters=(_USER_ID,),
        action="user.role_changed",
    )
    async def change_managed_user_role(self, admin: User, user_id: str, body: UserRoleRequest) -> UserAnswer:
        """Give a user of any account another role in it."""
        user = await self._user(user_id)
        return await self._change_role(admin, user.account_id, user_id, body.role)

    @for_admins(
        "POST /v1/admin/users/{id}/password-reset",
        (201, PasswordLinkAnswer, "The link."),
        Code.NOT_FOUND,
        parameters=(_USER_ID,),
        action="password.reset",
    )
    async def reset_user_password(self, _admin: User, user_id: str) -> PasswordLinkAnswer:
        """Get a link by which a user sets another password; it is good for a day, and once.

        The password so far is good until then. A second factor stays on.
        """
        return self._with_link(*await self.store.people.reset((await self._user(user_id)).id))

    @for_admins(
        "DELETE /v1/admin/users/{id}/totp",
        (200, DeletedAnswer, "It is off."),
        Code.NOT_FOUND,
        parameters=(_USER_ID,),
        action="totp.disabled",
    )
    async def remove_user_totp(self, _admin: User, user_id: str) -> DeletedAnswer:
        """Turn off the second factor of a user who has lost the app and the recovery codes."""
        user = await self._user(user_id)
        if not user.has_totp:
            raise Refused(Code.NOT_FOUND, "This user has no second factor.")
        await self.store.second_factors.remove(user.id)
        return DeletedAnswer(True, request_id())


def _shown(kind: type[Object], person: Person, access: Mapping[str, OwnedAccess], **more: str) -> Object:
    owned = access.get(person.id, OwnedAccess())
    return object_from(
        kind,
        person,
        role=person.account_role,
        admin=person.role is Role.ADMIN,
        totp=person.has_totp,
        api_keys=[OwnedKeyObject(*key) for key in owned.api_keys.items()],
        smtp_credentials=[OwnedCredentialObject(*credential) for credential in owned.smtp_credentials.items()],
        **more,
    )
