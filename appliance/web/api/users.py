"""Users of an account, their roles, and invitations by one-time links: /v1/users.

Administrators see the users of every account and create password links: /v1/admin/users.
"""

from collections.abc import Mapping
from ipaddress import ip_network
from operator import attrgetter
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.intake import account_rules
from appliance.intake.limits import RequestRate
from appliance.intake.login_throttle import FAILURE_DELAY
from appliance.keys.secrets import check_new
from appliance.model.accounts import AccountRole, OwnedAccess, PasswordLink, Person, Role, User
from appliance.model.dashboard import Actor
from appliance.net.address_policy import client_network, site_of
from appliance.store.audit import about, concerns
from appliance.web.api.login import LoginEmail, NewPassword
from appliance.web.app import ApiServices, Flag, Routes, client_address, flag
from appliance.web.exchange import ApiAnswer, CreatedAt, DeletedAnswer, Object, RequestId, SinglePage, Time, object_from
from appliance.web.operations import (
    ALWAYS,
    WITH_BODY,
    Operation,
    Tag,
    for_admins,
    for_customers,
    for_owners,
    identifier,
    parameter,
)

LINK_REFUSED = "This link was used, withdrawn or has expired. Ask for a new one."
NO_USER = "No user has this id."
# A link reveals whether its address belongs to another account. These limits bound such tests.
INVITATIONS_AT_ONCE = 100  # maximum number of users per account
INVITATIONS_PER_SECOND = 20 / 3600
TOO_MANY_INVITATIONS = "This account has sent 100 invitations. Send one every 3 minutes from now on."

INVITATIONS_OF_ADDRESS = 3  # mails at once, from all accounts
INVITATION_MAILS_PER_SECOND = 6 / 3600  # from then on

FORGOTTEN_OF_ADDRESS, FORGOTTEN_OF_NETWORK = 3, 10  # requests at once, by login address and by client network
FORGOTTEN_PER_SECOND = 6 / 3600  # from then on, of each
TOO_MANY_FORGOTTEN = "Too many requests for a password link. Retry in ten minutes."
NO_PASSWORD_MAIL = "This server sends no mail. Ask an administrator for a password link."  # noqa: S105 - a sentence

_USER_ID = identifier("User id.", "^usr_[0-9a-f]{32}$")
_PERSON_ID = identifier("Id of a user or an invitation.", "^(usr|inv)_[0-9a-f]{32}$")


_KEEP_KEYS = parameter(
    "keep_keys",
    "query",
    "`true` keeps the user's API keys and SMTP credentials working. Default: revoke them.",
    {"type": "string", "enum": list(Flag), "default": "false"},
)


class InvitationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The person to invite."""

    email: Annotated[LoginEmail, Meta(min_length=1, max_length=254, examples=["ann@example.com"])]
    role: Annotated[AccountRole, Meta(description="`owner`, `developer` (all but users) or `viewer` (read only).")]


class UserRoleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The new role."""

    role: Annotated[AccountRole, Meta(description="`owner`, `developer` (all but users) or `viewer` (read only).")]


class AcceptanceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The token of a link and the new password."""

    token: Annotated[str, Meta(min_length=1, max_length=100, description="Token from the link, after `token=`.")]
    password: Annotated[NewPassword, Meta(description="At least 8 characters.")]


class OwnedKeyObject(msgspec.Struct):
    """An active API key of a user."""

    id: Annotated[str, Meta(description="Key id, `key_…`.")]
    name: Annotated[str, Meta(description="Display name; `…` and the last four characters if the key has no name.")]


class OwnedCredentialObject(msgspec.Struct):
    """An active SMTP credential of a user."""

    username: Annotated[str, Meta(description="Username for SMTP and HTTP Basic.")]
    name: Annotated[str, Meta(description="Display name: one line of at most 64 characters.")]


class UserObject(msgspec.Struct):
    """A user of the account."""

    id: Annotated[str, Meta(description="User id, `usr_…`.")]
    email: LoginEmail
    role: Annotated[AccountRole, Meta(description="`owner`, `developer` (all but users) or `viewer` (read only).")]
    admin: Annotated[bool, Meta(description="Whether the user is an administrator of the installation.")]
    totp: Annotated[bool, Meta(description="Whether two-factor authentication is on.")]
    created_at: CreatedAt
    last_seen_at: Annotated[Time | None, Meta(description="Last renewal of a session; null without an active session.")]
    api_keys: Annotated[list[OwnedKeyObject], Meta(description="Active API keys; removing the user revokes them.")]
    smtp_credentials: Annotated[list[OwnedCredentialObject], Meta(description="Likewise, SMTP credentials.")]


class UserAnswer(UserObject):
    """One user."""

    request_id: RequestId


class InvitationObject(msgspec.Struct):
    """An open invitation."""

    id: Annotated[str, Meta(description="Invitation id, `inv_…`.")]
    email: LoginEmail
    role: Annotated[AccountRole, Meta(description="`owner`, `developer` (all but users) or `viewer` (read only).")]
    created_at: CreatedAt
    expires_at: Annotated[Time, Meta(description="Expiry time.")]


class UsersAnswer(ApiAnswer):
    """All users of an account. There are at most 100, so the list has one page."""

    users: Annotated[list[UserObject], Meta(description="Users, oldest first.")]
    invitations: Annotated[list[InvitationObject], Meta(description="Open invitations, oldest first.")]
    next: SinglePage


class RevokedAccessObject(msgspec.Struct):
    """Ids of revoked API keys and usernames of revoked SMTP credentials."""

    api_keys: Annotated[list[str], Meta(description="Ids of the API keys.")]
    smtp_credentials: Annotated[list[str], Meta(description="Usernames of the SMTP credentials.")]


class RemovedUserAnswer(ApiAnswer):
    """The user was removed, or the invitation withdrawn."""

    deleted: Annotated[bool, Meta(description="Always true.")]
    revoked: Annotated[RevokedAccessObject, Meta(description="What was revoked with the user.")]


class PasswordLinkAnswer(InvitationObject):
    """A one-time link that sets a password. It is only in this response, and in the mail."""

    link: Annotated[str, Meta(description="Link to set the password. Shown only once.")]
    mailed: Annotated[bool, Meta(description="Whether the server mails the link to the person.")]
    request_id: RequestId


class ForgottenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The address of the person who forgot the password."""

    email: Annotated[LoginEmail, Meta(min_length=1, max_length=254, examples=["owner@example.com"])]


class ForgottenAnswer(ApiAnswer):
    """The request was accepted. It does not say whether the address has a login."""

    accepted: Annotated[bool, Meta(description="Always true. A mail is sent if the address has a login.")]


class AcceptedAnswer(ApiAnswer):
    """The password is set."""

    email: LoginEmail


_INVITED, _LINK = (201, PasswordLinkAnswer, "The invitation with its link."), (201, PasswordLinkAnswer, "The link.")


class _People(Routes):
    async def _people(self, account_id: str) -> UsersAnswer:
        access = await self.store.access.of_people(account_id)
        users = [_shown(UserObject, person, access) for person in await self.store.people.of(account_id)]
        links = await self.store.people.invitations(account_id)
        return UsersAnswer(users, [object_from(InvitationObject, link, role=link.account_role) for link in links], None)

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
        return _shown(UserAnswer, await self.store.people.one(account_id, user_id), access)

    async def _with_link(self, link: PasswordLink, token: str, *, mail: bool = True) -> PasswordLinkAnswer:
        shown = account_rules.password_link(self.services.config.http.base_url, link.email, token)
        account = await self.store.accounts.find(link.account_id)
        mailed = mail and await self.services.mailer.mail_link(link, token, account.name)
        return object_from(PasswordLinkAnswer, link, role=link.account_role, link=shown, mailed=mailed)


class UserRoutes(_People):
    tag = Tag.PEOPLE

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        env, nodes = services.env, services.store.engine.live_nodes
        self.invitations = RequestRate(INVITATIONS_PER_SECOND, env, INVITATIONS_AT_ONCE, TOO_MANY_INVITATIONS, nodes)
        self.invited = RequestRate(INVITATION_MAILS_PER_SECOND, env, INVITATIONS_OF_ADDRESS, nodes=nodes)
        limits = TOO_MANY_FORGOTTEN, nodes
        self.forgotten_addresses = RequestRate(FORGOTTEN_PER_SECOND, env, FORGOTTEN_OF_ADDRESS, *limits)
        self.forgotten_networks = RequestRate(FORGOTTEN_PER_SECOND, env, FORGOTTEN_OF_NETWORK, *limits)

    @for_customers("GET /v1/users", UsersAnswer)
    async def list_users(self, user: User) -> UsersAnswer:
        """List the account's users and open invitations."""
        return await self._people(user.account_id)

    @for_owners("POST /v1/users", _INVITED, Code.CONFLICT, action="user.invited")
    async def invite_user(self, user: User, body: InvitationRequest) -> PasswordLinkAnswer:
        """Invite a person to the account with a role.

        The server mails the link if it can (`mailed`), to one address three times at once and then six times an hour;
        otherwise send it to the person yourself. It works once, for seven days. A second invitation of the same address
        replaces the first. An address can log in to one account only; a person with another account learns this when
        opening the link.
        """
        email = account_rules.login_email(body.email)
        self.invitations.take(user.account_id)
        about(email, {"role": body.role})
        link, token = await self.store.people.invite(user.account_id, email, body.role)
        return await self._with_link(link, token, mail=self._may_mail(email))

    def _may_mail(self, email: str) -> bool:
        """Whether an invitation may be mailed: many must not go to one stranger."""
        name, _, domain = email.lower().rpartition("@")
        try:
            self.invited.take(f"{name.partition('+')[0]}@{domain}")
        except Refused:
            return False
        return True

    @for_owners("POST /v1/users/{id}/role", UserAnswer, Code.CONFLICT, _USER_ID, action="user.role_changed")
    async def change_user_role(self, user: User, user_id: str, body: UserRoleRequest) -> UserAnswer:
        """Change a user's role, effective from the next request. An account keeps at least one owner.

        For a user who becomes a viewer, API keys with the scope `full` or `manage` become `read`; keys with the scope
        `send` and SMTP credentials are revoked. Only an administrator may change an administrator's role.
        """
        return await self._change_role(user, user.account_id, user_id, body.role)

    @for_owners(
        "DELETE /v1/users/{id}", RemovedUserAnswer, Code.CONFLICT, _PERSON_ID, _KEEP_KEYS, action="user.removed"
    )
    async def remove_user(self, user: User, person_id: str) -> RemovedUserAnswer:
        """Remove a user from the account, or withdraw an invitation.

        The user's sessions end, and the user's API keys and SMTP credentials are revoked. With `keep_keys=true` they
        keep working and belong to the account. Only an administrator may remove an administrator, and the installation
        keeps at least one.
        """
        revoked = OwnedAccess()
        keep_keys = flag("keep_keys")
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
        return RemovedUserAnswer(True, ended)

    @Operation(
        "POST /v1/auth/invitation",
        (200, AcceptedAnswer, "The password is set."),
        (*WITH_BODY, Code.UNAUTHORIZED, Code.CONFLICT, *ALWAYS),
    )
    async def accept_invitation(self, body: AcceptanceRequest) -> AcceptedAnswer:
        """Accept an invitation, or set a new password with an administrator's link.

        The token follows `token=` in the link. A wrong token is refused after a second, like a wrong credential.
        """
        password = check_new(body.password)
        link = await self.store.people.open_link(body.token)
        if link is not None:  # do not hash for an invalid token
            address = client_address()
            password_hash = await self.services.hashing.hashed(password, site_of(address))
            actor, action = Actor("user", link.email), "user.password_changed" if link.user_id else "user.joined"
            async with self.store.audit.noting(actor, action, address, (link.account_id,), always=False):
                link = await self.store.people.use_link(body.token, password_hash)
        if link is None:
            refused = await self.services.auth.credentials.wrong_guess(client_address())
            raise Refused(refused.code, LINK_REFUSED, retry_after=refused.retry_after)
        self.services.auth.forget()
        return AcceptedAnswer(link.email)

    @Operation(
        "POST /v1/auth/forgotten-password",
        (202, ForgottenAnswer, "Accepted. A mail is sent if the address has a login."),
        (*WITH_BODY, Code.CONFLICT, *ALWAYS),
    )
    async def request_password_link(self, body: ForgottenRequest) -> ForgottenAnswer:
        """Mail a link that sets a new password to a person who forgot it. It works once, for an hour.

        The response and its time are the same for every address, with or without a login. If the server sends no mail,
        the status is 409.
        """
        answered_at, address = trio.current_time() + FAILURE_DELAY, client_address()
        mailer, email = self.services.mailer, body.email.strip().lower()
        if mailer.sender is None:
            raise Refused(Code.CONFLICT, NO_PASSWORD_MAIL)
        network = client_network(address)
        if not ip_network(network).is_loopback:  # all clients of a local proxy that is not trusted share it
            self.forgotten_networks.take(network)
        self.forgotten_addresses.take(email)
        if "\0" not in email:  # in a task of its own: neither an error nor a wait reveals that the address has a login
            trio.lowlevel.spawn_system_task(mailer.mail_forgotten, email, address)
        await trio.sleep_until(answered_at)
        return ForgottenAnswer(True)


class AdminUserRoutes(_People):
    tag = Tag.ADMINISTRATION

    @for_admins("GET /v1/admin/accounts/{id}/users", UsersAnswer, identifier("Account id.", "^acc_[0-9a-f]{32}$"))
    async def list_managed_users(self, _admin: User, account_id: str) -> UsersAnswer:
        """List the users of an account."""
        return await self._people((await self.store.accounts.find(account_id)).id)

    @for_admins("POST /v1/admin/users/{id}/role", UserAnswer, Code.CONFLICT, _USER_ID, action="user.role_changed")
    async def change_managed_user_role(self, admin: User, user_id: str, body: UserRoleRequest) -> UserAnswer:
        """Change the role of a user of any account."""
        user = await self._user(user_id)
        return await self._change_role(admin, user.account_id, user_id, body.role)

    @for_admins("POST /v1/admin/users/{id}/password-reset", _LINK, _USER_ID, action="password.reset")
    async def reset_user_password(self, _admin: User, user_id: str) -> PasswordLinkAnswer:
        """Create a link that lets a user set a new password, and mail it if the server can. It works once, for a day.

        The old password works until then. Two-factor authentication stays on.
        """
        return await self._with_link(*await self.store.people.reset((await self._user(user_id)).id))

    @for_admins("DELETE /v1/admin/users/{id}/totp", DeletedAnswer, _USER_ID, action="totp.disabled")
    async def remove_user_totp(self, _admin: User, user_id: str) -> DeletedAnswer:
        """Turn off two-factor authentication for a user who lost the app and the recovery codes."""
        user = await self._user(user_id)
        if not user.has_totp:
            raise Refused(Code.NOT_FOUND, "This user has no two-factor authentication.")
        await self.store.second_factors.remove(user.id)
        return DeletedAnswer(True)


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
