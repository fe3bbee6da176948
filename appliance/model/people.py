"""The people of an account, the links that let them set a password, and their second factors."""

from dataclasses import dataclass, field

from appliance.model.mail import AccountRole, Role


@dataclass(frozen=True, slots=True)
class Person:
    """A user as the owners of the account see it."""

    id: str
    email: str
    account_role: AccountRole
    role: Role
    has_totp: bool
    created_at: int
    last_seen_at: int | None  # when one of the sessions that go on was renewed last


@dataclass(frozen=True, slots=True)
class OwnedAccess:
    """API keys by id and SMTP credentials by username, with what people call them."""

    api_keys: dict[str, str] = field(default_factory=dict)
    smtp_credentials: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemovedPerson:
    """A user who was removed, and what was revoked with it."""

    email: str
    revoked: OwnedAccess


@dataclass(frozen=True, slots=True)
class PasswordLink:
    """An invitation, or for a user who is there (`user_id`) a password reset. Its token is known to its holder only."""

    id: str
    account_id: str
    user_id: str | None
    email: str
    account_role: AccountRole
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class SecondFactor:
    """A secret that makes codes; in force once a first code was given."""

    secret: bytes = field(repr=False)  # sealed
    confirmed_at: int | None
    last_step: int
