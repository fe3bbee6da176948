"""SMTP credentials and API keys: /v1/smtp-credentials and /v1/api-keys.

A password or key is shown once, on creation. The store keeps only hashes.
"""

from datetime import datetime
from operator import itemgetter
from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.errors import Code, Refused, invalid
from appliance.intake import account_rules
from appliance.message.characters import LINE_PATTERN
from appliance.model.accounts import DsnDefault, KeyPrincipal, Principal, Scope
from appliance.store.audit import about
from appliance.times import DAY, SECOND
from appliance.web.app import Routes, check_line, page_limit
from appliance.web.auth import check_reach
from appliance.web.exchange import ApiAnswer, CreatedAt, NextPage, RequestId, Time, object_from
from appliance.web.operations import PAGING_BACK, Limited, Tag, for_customers, identifier

MAX_EXPIRY = 3_650 * DAY  # microseconds from now
MAX_OVERLAP = 30 * DAY

REPLACED = "This secret was replaced. Create, roll and revoke keys with the new one."
NO_MORE = "An API key may not create or roll a key with more permissions or a longer lifetime than its own."

KeyScope = Annotated[Scope, Meta(description="`send`, `read`, `full` (both) or `manage` (both, and `/v1`).")]
IsTest = Annotated[bool, Meta(description="Whether this is a test key. Its messages are never delivered.")]
_DOMAIN = Meta(description="Only sending domain; null for all domains.")
_EXPIRY = Meta(description="Expiry time; null for none.")
_DSN = Meta(description="`failure`: mail a DSN for failed recipients whose RCPT has no NOTIFY; null for none.")
_STREAM = Meta(description="Stream of messages that name none; null: `transactional`.")
_LIFETIME = Meta(description="Lifetime in seconds, instead of `expires_at`.")
_OVERLAP = Meta(ge=0, le=MAX_OVERLAP // SECOND, description="Seconds that the old secret keeps working.")
Label = Annotated[str, Meta(max_length=64, examples=["web shop"], extra_json_schema={"pattern": LINE_PATTERN})]


def _creator(principal: Principal) -> str | None:
    """The user that owns a new key or credential. A key creates for the user who created it."""
    return principal.created_by if isinstance(principal, KeyPrincipal) else principal.id


class RevokedAnswer(ApiAnswer):
    """The response to a revocation."""

    revoked: Annotated[bool, Meta(description="Always true.")]


class SmtpCredentialRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The properties of a new credential."""

    name: Annotated[Label, Meta(description="Display name: one line of at most 64 characters.")] = ""
    dsn: Annotated[DsnDefault | None, _DSN] = None
    stream: Annotated[str, _STREAM] | None = None


class SmtpCredentialObject(msgspec.Struct):
    """A credential without its password."""

    username: Annotated[str, Meta(description="Username for SMTP and HTTP Basic.")]
    name: Annotated[str, Meta(description="Display name: one line of at most 64 characters.")]
    dsn: Annotated[DsnDefault | None, _DSN]
    stream: Annotated[str | None, _STREAM]
    created_by: Annotated[str | None, Meta(description="Address of the creator; null if unknown or removed.")]
    created_at: CreatedAt
    last_used_at: Annotated[Time | None, Meta(description="Time of last use; null if never used.")]
    revoked_at: Annotated[Time | None, Meta(description="Time of revocation; null if not revoked.")]


class NewSmtpCredentialAnswer(SmtpCredentialObject):
    """A new credential; the password is shown only here."""

    password: Annotated[str, Meta(description="Password for SMTP and HTTP Basic. Shown only once.")]
    request_id: RequestId


class SmtpCredentialsAnswer(ApiAnswer):
    """A page of credentials, newest first. Pass `next` as `before` to get the next page."""

    smtp_credentials: Annotated[list[SmtpCredentialObject], Meta(description="SMTP credentials, newest first.")]
    next: NextPage


class ApiKeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The properties of a new key."""

    name: Annotated[Label, Meta(description="Display name: one line of at most 64 characters.")] = ""
    scope: KeyScope = Scope.SEND
    test: IsTest = False
    domain: Annotated[str, _DOMAIN, Meta(max_length=253, examples=["example.com"])] | None = None
    expires_at: Annotated[str, _EXPIRY, Meta(max_length=40, extra_json_schema={"format": "date-time"})] | None = None
    expires_in: Annotated[float, Meta(ge=1, le=MAX_EXPIRY // SECOND), _LIFETIME] | None = None
    stream: Annotated[str, _STREAM] | None = None


class RollRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Optional body."""

    overlap: Annotated[float, _OVERLAP] = DAY // SECOND


class ApiKeyObject(msgspec.Struct):
    """An API key without its secret."""

    id: Annotated[str, Meta(description="Key id, `key_…`.")]
    name: Annotated[str, Meta(description="Display name: one line of at most 64 characters.")]
    hint: Annotated[str, Meta(description="Last four characters of the key.")]
    scope: KeyScope
    test: IsTest
    domain: Annotated[str | None, _DOMAIN]
    stream: Annotated[str | None, _STREAM]
    created_by: Annotated[str | None, Meta(description="Address of the creator; null if unknown or removed.")]
    created_at: CreatedAt
    expires_at: Annotated[Time | None, _EXPIRY]
    last_used_at: Annotated[Time | None, Meta(description="Time of last use; null if never used.")]
    last_used_from: Annotated[str | None, Meta(description="Client address of last use; null if never used.")]
    previous_hint: Annotated[str | None, Meta(description="Last four characters of the previous secret, or null.")]
    previous_expires_at: Annotated[Time | None, Meta(description="Expiry of the previous secret; null without one.")]
    revoked_at: Annotated[Time | None, Meta(description="Time of revocation; null if not revoked.")]


class NewApiKeyAnswer(ApiKeyObject):
    """A new key, or a key with a new secret. The secret is only in this response."""

    key: Annotated[str, Meta(description="The API key. Shown only once.")]
    request_id: RequestId


class ApiKeysAnswer(ApiAnswer):
    """A page of keys, newest first. Pass `next` as `before` to get the next page."""

    api_keys: Annotated[list[ApiKeyObject], Meta(description="API keys, newest first.")]
    next: NextPage


_USERNAME = identifier("Username of the credential.", "^smtp_[0-9a-f]{32}$", "username")
_NEW_CREDENTIAL = (201, NewSmtpCredentialAnswer, "The credential with its password.")
_KEY_ID = identifier("Key id.", "^key_[0-9a-f]{32}$")
_NEW_KEY = (201, NewApiKeyAnswer, "The key.")


def _check_is_current(user: Principal) -> None:
    """Refuse a replaced secret. Otherwise it could extend its overlap by rolling the key again."""
    if isinstance(user, KeyPrincipal) and user.replaced:
        raise Refused(Code.FORBIDDEN, REPLACED)


class CredentialRoutes(Routes):
    tag = Tag.CREDENTIALS

    @for_customers("GET /v1/smtp-credentials", SmtpCredentialsAnswer, *PAGING_BACK)
    async def list_smtp_credentials(self, user: Principal) -> SmtpCredentialsAnswer:
        """List the account's SMTP credentials, newest first, including revoked ones."""
        limit = page_limit()
        await self.services.auth.credentials.record_uses()
        credentials = await self.store.access.newest_credentials(user.account_id, request.args.get("before"), limit + 1)
        following = credentials[limit - 1].username if len(credentials) > limit else None
        shown = [object_from(SmtpCredentialObject, credential) for credential in credentials[:limit]]
        return SmtpCredentialsAnswer(shown, following)

    @for_customers("POST /v1/smtp-credentials", _NEW_CREDENTIAL, Code.CONFLICT, action="smtp_credential.created")
    async def create_smtp_credential(self, user: Principal, body: SmtpCredentialRequest) -> NewSmtpCredentialAnswer:
        """Create an SMTP credential.

        Use it for SMTP submission, and with HTTP Basic for `POST /emails` and `GET /emails/{id}`. The password is only
        in this response.
        """
        check_line("name", body.name)
        if isinstance(user, KeyPrincipal) and not user.covers(None, None):  # a password cannot be limited
            raise Refused(Code.FORBIDDEN, NO_MORE)
        self._check_stream(body.stream)
        name = body.name.strip()
        about(None, {"name": name}, made=itemgetter(0))
        username, password = await self.store.access.create_credential(
            user.account_id, name=name, by_owner=True, created_by=_creator(user), dsn=body.dsn, stream=body.stream
        )
        created = await self.store.access.credential(user.account_id, username)
        return object_from(NewSmtpCredentialAnswer, created, password=password)

    @for_customers("DELETE /v1/smtp-credentials/{username}", RevokedAnswer, _USERNAME, action="smtp_credential.revoked")
    async def revoke_smtp_credential(self, user: Principal, username: str) -> RevokedAnswer:
        """Revoke an SMTP credential permanently."""
        await self.store.access.revoke_credential(user.account_id, username)
        self.services.auth.forget()
        return RevokedAnswer(True)

    @for_customers("GET /v1/api-keys", ApiKeysAnswer, *PAGING_BACK, limited=Limited.NARROWED)
    async def list_api_keys(self, user: Principal) -> ApiKeysAnswer:
        """List the account's API keys, newest first, including revoked ones.

        An API key that is limited to a domain sees only keys with the same limit.
        """
        limit, before = page_limit(), request.args.get("before")
        domain = user.domain if isinstance(user, KeyPrincipal) else None
        await self.services.auth.credentials.record_uses()
        keys = await self.store.access.newest_keys(user.account_id, before, limit + 1, domain)
        following = keys[limit - 1].id if len(keys) > limit else None
        shown = [object_from(ApiKeyObject, key) for key in keys[:limit]]
        return ApiKeysAnswer(shown, following)

    @for_customers("POST /v1/api-keys", _NEW_KEY, Code.CONFLICT, action="api_key.created", limited=Limited.NARROWED)
    async def create_api_key(self, user: Principal, body: ApiKeyRequest) -> NewApiKeyAnswer:
        """Create an API key.

        Scopes: `send` (default) may only send, `read` may only read messages, `full` may do both, and `manage` may also
        do what a developer of the account may do under `/v1`. A key with a `domain` sends only from that domain.
        Messages of a test key are free and never delivered. The key is only in this response. A key may create keys
        with at most its own permissions and lifetime.
        """
        _check_is_current(user)
        check_line("name", body.name)
        if body.test and body.scope is Scope.MANAGE:
            raise invalid("test", "A test key cannot have the scope manage: its changes would be real.")
        domain = None if body.domain is None else account_rules.domain_name(body.domain)
        expires_at = self._expiry(body)
        self._check_stream(body.stream)
        if isinstance(user, KeyPrincipal) and not user.covers(domain, expires_at):
            raise Refused(Code.FORBIDDEN, NO_MORE)
        about(None, {"name": body.name, "scope": body.scope.value, "domain": domain}, made=itemgetter(0))
        key_id, key = await self.store.access.create_key(
            user.account_id,
            scope=body.scope,
            test=body.test,
            name=body.name.strip(),
            domain=domain,
            expires_at=expires_at,
            by_owner=True,
            created_by=_creator(user),
            stream=body.stream,
        )
        created = await self.store.access.key(key_id)
        return object_from(NewApiKeyAnswer, created, key=key)

    def _check_stream(self, name: str | None) -> None:
        if name is not None:
            self.services.intake.streams.get(name)

    def _expiry(self, body: ApiKeyRequest) -> int | None:
        now = self.services.env.now()
        if body.expires_at is None:
            return None if body.expires_in is None else now + int(body.expires_in * SECOND)
        if body.expires_in is not None:
            raise invalid("expires_at", "Send either expires_at or expires_in, not both.")
        try:
            moment = datetime.fromisoformat(body.expires_at)
            at = round(moment.timestamp() * SECOND) if moment.tzinfo else 0
        except (ValueError, OverflowError):
            at = 0
        if not now < at <= now + MAX_EXPIRY:
            raise invalid("expires_at", "must be a future time such as 2027-01-31T00:00:00Z, within ten years")
        return at

    @for_customers(
        "POST /v1/api-keys/{id}/roll",
        NewApiKeyAnswer,
        Code.CONFLICT,
        _KEY_ID,
        needs_body=False,
        action="api_key.rolled",
        limited=Limited.NARROWED,
    )
    async def roll_api_key(self, user: Principal, key_id: str, body: RollRequest) -> NewApiKeyAnswer:
        """Give an API key a new secret. The old secret works for `overlap` more seconds (default: one day).

        The key keeps its id, scope and limits, and belongs to the user who rolled it. The secret before the old one
        stops working immediately.
        """
        _check_is_current(user)
        old = await self.store.access.key(key_id, user.account_id)
        if isinstance(user, KeyPrincipal) and user.id != key_id and not user.covers(old.domain, old.expires_at):
            raise Refused(Code.FORBIDDEN, NO_MORE)
        about(None, {"name": old.name, "overlap": int(body.overlap)})
        overlap = int(body.overlap * SECOND)
        key = await self.store.access.roll_key(old, overlap, user.account_id, _creator(user))
        self.services.auth.forget()
        rolled = await self.store.access.key(key_id)
        return object_from(NewApiKeyAnswer, rolled, key=key)

    @for_customers(
        "DELETE /v1/api-keys/{id}", RevokedAnswer, _KEY_ID, action="api_key.revoked", limited=Limited.NARROWED
    )
    async def revoke_api_key(self, user: Principal, key_id: str) -> RevokedAnswer:
        """Revoke an API key permanently.

        An API key that is limited to a domain may revoke only keys with the same limit.
        """
        _check_is_current(user)
        if not key_id.startswith("key_"):  # the store also accepts the key itself, which does not belong in a URL
            raise Refused(Code.NOT_FOUND, "No API key has this id.")
        check_reach(user, (await self.store.access.key(key_id, user.account_id)).domain)
        await self.store.access.revoke_key(key_id, user.account_id)
        self.services.auth.forget()
        return RevokedAnswer(True)
