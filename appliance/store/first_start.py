"""In charge of the first account of an installation: all of it in one transaction, or nothing."""

from dataclasses import dataclass, field

import apsw

from appliance.model.mail import Account, Role, Scope
from appliance.outside import Outside
from appliance.store.access import add_credential, add_domain, add_key
from appliance.store.accounts import create_account
from appliance.store.engine import Engine
from appliance.store.sql import first

_ANY_ACCOUNT = "SELECT name FROM accounts ORDER BY created_at LIMIT 1"


@dataclass(frozen=True, slots=True)
class FirstAccount:
    """An account with one of everything; its secrets are known only now."""

    account: Account
    domain: str
    username: str
    smtp_password: str = field(repr=False)
    key_id: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class FirstStart:
    """Whether there is an account yet, and making the first."""

    engine: Engine
    outside: Outside

    def any_account(self) -> str | None:
        """The name of the oldest account, None when there is none yet."""
        return self.engine.read(_any_account)

    async def create(self, *, name: str, email: str, password_hash: str, domain: str) -> FirstAccount | None:
        """An account with a user, a domain, an SMTP credential and an API key; None when there is an account."""
        return await self.engine.write(lambda c: _create(c, self.outside, name, email, password_hash, domain))


def _any_account(c: apsw.Connection) -> str | None:
    row = first(c, _ANY_ACCOUNT, {})
    return None if row is None else str(row[0])


def _create(
    c: apsw.Connection, outside: Outside, name: str, email: str, password_hash: str, domain: str
) -> FirstAccount | None:
    if _any_account(c) is not None:
        return None
    account = create_account(c, outside, name, email, password_hash, Role.CUSTOMER, None)
    add_domain(c, outside, account.id, domain, usable=True)
    username, password = add_credential(c, outside, account.id)
    key_id, key = add_key(c, outside, account.id, Scope.FULL, test=False)
    return FirstAccount(account, domain, username, password, key_id, key)
