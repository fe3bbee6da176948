"""Who may do what in `appliance dev`: every client is the one account's API key, and every page its only user."""

from dataclasses import dataclass

from msgspec.structs import replace as changed

from appliance.intake.limits import Credentials
from appliance.model.accounts import Caller, CredentialKind, KeyPrincipal, Principal, Scope, User
from appliance.web.auth import Authenticator, Claims

KEY_ID = "key_dev"
SESSION_ID = "ses_dev"
TEST_KEY = b"ma_test_"


class AnyDomain(frozenset[str]):
    """Contains every domain."""

    def __contains__(self, domain: object) -> bool:
        return True


def everyone(caller: Caller) -> Caller:
    """The caller of every request: an API key of this account with all rights, for any From domain."""
    key = KeyPrincipal(KEY_ID, caller.account_id, "", Scope.MANAGE)
    scope = f"key:{KEY_ID}"
    return changed(caller, kind=CredentialKind.KEY, idempotency_scope=scope, domains=AnyDomain(caller.domains), key=key)


@dataclass(slots=True, kw_only=True)
class OpenCredentials(Credentials):
    """Accepts every SMTP login."""

    everyone: Caller

    def known_caller(self, username: str | None, password_sha256: bytes) -> Caller | None:
        return self.everyone

    async def caller(self, username: str | None, password_sha256: bytes, address: str = "") -> Caller | None:
        return self.everyone


@dataclass(slots=True, kw_only=True)
class OpenAuthenticator(Authenticator):
    """Accepts every Authorization header, and requests without one. A test key sends test mail, as in production."""

    everyone: Caller
    developer: User

    async def caller(self, authorization: bytes | None, address: str) -> Caller:
        return changed(self.everyone, test=True) if TEST_KEY in (authorization or b"") else self.everyone

    async def principal(self, authorization: bytes | None, address: str) -> Principal:
        return self.developer

    async def user(self, authorization: bytes | None, address: str) -> tuple[User, Claims]:
        person = self.developer
        return person, Claims(person.id, person.account_id, person.token_epoch, SESSION_ID)

    async def is_still_valid(self, authorization: bytes | None) -> bool:
        return True
