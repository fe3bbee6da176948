"""Accounts as all packages know them: their people, credentials, permissions and domains. Enums and frozen records."""

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct


class Role(StrEnum):
    """Whether a user of the dashboard administers the installation."""

    CUSTOMER = "customer"
    ADMIN = "admin"


class AccountRole(StrEnum):
    """What a user may do in the account: everything, everything except managing people, or only read."""

    OWNER = "owner"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class Permission(StrEnum):
    """The permission that an operation under /v1 requires; users and keys have several."""

    VIEW = "view"  # read the account's data
    DEVELOP = "develop"  # change domains, templates, keys, the webhook, suppressions; cancel and test mail
    OWN = "own"  # manage the people of the account
    ADMINISTER = "administer"  # manage all accounts, the queue and the nodes


class Scope(StrEnum):
    """What an API key may do: send, read results, both, or also everything a developer may do in /v1."""

    SEND = "send"
    READ = "read"
    FULL = "full"
    MANAGE = "manage"


class CredentialKind(StrEnum):
    SMTP = "smtp"
    KEY = "key"
    TOKEN = "token"  # noqa: S105 - the word, not a secret


class DsnDefault(StrEnum):
    """The default of NOTIFY for recipients of a credential; without it they cause no DSN."""

    FAILURE = "failure"


# ---- principals

_DEVELOPER = frozenset({Permission.VIEW, Permission.DEVELOP})
_PERMISSIONS = {
    AccountRole.OWNER: _DEVELOPER | {Permission.OWN},
    AccountRole.DEVELOPER: _DEVELOPER,
    AccountRole.VIEWER: frozenset({Permission.VIEW}),
}


class User(Struct, frozen=True):
    id: str
    account_id: str
    account_name: str
    email: str
    role: Role
    password_hash: str
    token_epoch: int
    account_role: AccountRole = AccountRole.OWNER
    has_totp: bool = False  # a second factor is active
    must_enrol: bool = False  # before anything else

    @property
    def permissions(self) -> frozenset[Permission]:
        in_account = _PERMISSIONS[self.account_role]
        return in_account | {Permission.ADMINISTER} if self.role is Role.ADMIN else in_account


class KeyPrincipal(Struct, frozen=True, gc=False):
    """An API key, as a principal. It never has more permissions than a developer."""

    id: str
    account_id: str
    name: str
    scope: Scope
    domain: str | None = None  # the only domain it may send from
    expires_at: int | None = None  # of the key, or of a replaced secret
    replaced: bool = False  # by a newer secret
    test: bool = False  # mail is simulated
    created_by: str | None = None  # the owner, also of keys that this key creates

    @property
    def permissions(self) -> frozenset[Permission]:
        return _DEVELOPER if self.scope is Scope.MANAGE and not self.test else frozenset()

    def covers(self, domain: str | None, expires_at: int | None) -> bool:
        """Return whether a key with these limits may do no more than this one."""
        ends_first = self.expires_at is None or (expires_at is not None and expires_at <= self.expires_at)
        return self.reaches(domain) and ends_first

    def reaches(self, domain: str | None) -> bool:
        """Return whether the key's domain limit covers this domain; None: the whole account."""
        return self.domain is None or domain == self.domain


Principal = User | KeyPrincipal  # the caller of /v1


KEY_PREFIX = "ma_"  # of every API key


class Caller(Struct, frozen=True, gc=False):
    """An authenticated sender; its data may be half a second old."""

    account_id: str
    kind: CredentialKind
    idempotency_scope: str  # the SMTP credential, the API key, or the account of a token
    may_read: bool
    test: bool
    suspended: bool
    domains: frozenset[str]  # usable From domains, A-labels, lower case
    unsubscribe_tags: frozenset[str] = frozenset()  # messages with one of these get an unsubscribe link
    return_paths: dict[str, str] = {}  # in use, by domain
    may_send: bool = True
    key: "KeyPrincipal | None" = None
    dsn: DsnDefault | None = None
    stream: str | None = None  # of its messages, unless they or their template name one

    @property
    def credential(self) -> str | None:
        """The API key's id or the SMTP username; None for a login."""
        is_login = self.kind is CredentialKind.TOKEN and self.key is None
        return None if is_login else self.idempotency_scope.partition(":")[2]


# ---- accounts and their people


class Account(Struct, frozen=True):
    id: str
    name: str
    email: str
    credits: int | None  # None: unlimited
    daily_cap: int | None
    suspended: bool
    created_at: int
    stored_bytes: int = 0  # of messages and templates


class LedgerKind(StrEnum):
    GRANT = "grant"
    RESERVE = "reserve"
    RELEASE = "release"


class LedgerEntry(Struct, frozen=True):
    id: str
    kind: LedgerKind
    amount: int
    balance: int
    message_id: str | None
    recipient_id: str | None
    created_at: int


class Person(Struct, frozen=True):
    """A user as the owners of the account see it."""

    id: str
    email: str
    account_role: AccountRole
    role: Role
    has_totp: bool
    created_at: int
    last_seen_at: int | None  # last renewal of an open session


class PasswordLink(Struct, frozen=True):
    """An invitation, or a password reset of an existing user (`user_id`). Only its holder knows the token."""

    id: str
    account_id: str
    user_id: str | None
    email: str
    account_role: AccountRole
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class SecondFactor:
    secret: bytes = field(repr=False)  # sealed
    confirmed_at: int | None
    last_step: int


@dataclass(frozen=True, slots=True)
class OwnedAccess:
    """API keys by id and SMTP credentials by username, with their names."""

    api_keys: dict[str, str] = field(default_factory=dict)
    smtp_credentials: dict[str, str] = field(default_factory=dict)


class RemovedPerson(Struct, frozen=True):
    email: str
    revoked: OwnedAccess


class SmtpCredential(Struct, frozen=True):
    username: str
    created_at: int
    revoked_at: int | None
    name: str = ""  # chosen by its owner
    last_used_at: int | None = None
    created_by: str | None = None  # a user's address; None: the operator's shell, or unknown
    dsn: DsnDefault | None = None
    stream: str | None = None


class ApiKey(Struct, frozen=True):
    id: str
    account_name: str
    hint: str  # its last four characters
    scope: Scope
    test: bool
    created_at: int
    revoked_at: int | None
    name: str = ""  # chosen by its owner
    last_used_at: int | None = None
    last_used_from: str | None = None  # a client's address
    domain: str | None = None  # the only domain it may send from
    expires_at: int | None = None
    previous_hint: str | None = None  # of the previous secret, while valid
    previous_expires_at: int | None = None
    created_by: str | None = None  # a user's address; None: the operator's shell, or unknown
    stream: str | None = None


# ---- domains


class RecordStatus(StrEnum):
    """The state of a required record in DNS."""

    OK = "ok"
    MISSING = "missing"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # the lookup failed


class DomainDns(Struct, frozen=True):
    """The state of a domain's records at the last check: the worst of each kind."""

    checked_at: int
    spf: RecordStatus
    dkim: RecordStatus
    dmarc: RecordStatus
    return_path: RecordStatus | None = None  # None: the domain has no return path
    unknown_since: int | None = None  # the first of consecutive checks with a failed lookup

    @property
    def is_good(self) -> bool:
        return self._states() <= {RecordStatus.OK, None}

    @property
    def is_unknown(self) -> bool:
        return RecordStatus.UNKNOWN in self._states()

    def _states(self) -> set[RecordStatus | None]:
        return {self.spf, self.dkim, self.dmarc, self.return_path}


class Domain(Struct, frozen=True):
    name: str
    usable: bool
    created_at: int
    verified_at: int | None = None  # None: DNS does not prove it yet
    return_path: str = ""  # the host name that receives its bounces
    return_path_at: int | None = None  # when DNS first showed its records; None: not in use
    dns: DomainDns | None = None  # None: not checked yet


@dataclass(frozen=True, slots=True)
class StoredDkimKey:
    selector: str
    algorithm: str
    private_key: bytes = field(repr=False)  # sealed
    record: str  # the TXT record to publish
    created_at: int = 0
    retired_at: int | None = None
    pending: bool = False  # made by a rotation; signs once DNS shows its record

    @property
    def signs(self) -> bool:
        return self.retired_at is None and not self.pending
