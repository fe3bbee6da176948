"""SMTP credentials and API keys, managed by the owner of the account: /v1/smtp-credentials and /v1/api-keys.

A password and a key are shown once, when they are made; the store has their hashes only.
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
from appliance.model.accounts import KeyPrincipal, Principal, Scope
from appliance.store.audit import about
from appliance.times import DAY, SECOND, rfc3339
from appliance.web.answer import Time, object_from
from appliance.web.app import Routes, check_line, page_limit, request_id
from appliance.web.auth import check_reach
from appliance.web.operations import PAGING_BACK, Limited, for_customers, identifier

MAX_EXPIRY = 3_650 * DAY  # microseconds from now
MAX_OVERLAP = 30 * DAY

REPLACED = "This secret of the API key was replaced: keys are made, rolled and revoked with the new one."
NO_MORE = "An API key may not make or roll one that may do more, or for longer, than itself."

Label = Annotated[str, Meta(max_length=64, examples=["web shop"], extra_json_schema={"pattern": LINE_PATTERN})]


def _creator(principal: Principal) -> str | None:
    """The user whom a new key or credential belongs to: a key creates for the user who created it."""
    return principal.created_by if isinstance(principal, KeyPrincipal) else principal.id


class RevokedAnswer(msgspec.Struct):
    """The answer to a revocation."""

    revoked: bool
    request_id: str


class SmtpCredentialRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    name: Label = ""


class SmtpCredentialObject(msgspec.Struct):
    """A credential without its password."""

    username: str
    name: str
    created_by: str | None
    created_at: Time
    last_used_at: Time | None
    revoked_at: Time | None


class NewSmtpCredentialAnswer(msgspec.Struct):
    """A new credential; the password is shown only here."""

    username: str
    password: str
    name: str
    created_at: Time
    request_id: str


class SmtpCredentialsAnswer(msgspec.Struct):
    """A page of credentials, newest first; `next` goes into `before` for the page that follows."""

    smtp_credentials: list[SmtpCredentialObject]
    next: str | None
    request_id: str


class SmtpCredentialRoutes(Routes):
    @for_customers(
        "GET /v1/smtp-credentials", (200, SmtpCredentialsAnswer, "A page of credentials."), parameters=PAGING_BACK
    )
    async def list_smtp_credentials(self, user: Principal) -> SmtpCredentialsAnswer:
        """List the account's SMTP credentials, revoked ones too, newest first."""
        limit = page_limit()
        await self.services.auth.credentials.record_uses()
        found = await self.store.access.newest_credentials(user.account_id, request.args.get("before"), limit + 1)
        following = found[limit - 1].username if len(found) > limit else None
        shown = [object_from(SmtpCredentialObject, each) for each in found[:limit]]
        return SmtpCredentialsAnswer(shown, following, request_id())

    @for_customers(
        "POST /v1/smtp-credentials",
        (201, NewSmtpCredentialAnswer, "The credential, with its password."),
        Code.CONFLICT,
        body=SmtpCredentialRequest,
        action="smtp_credential.created",
    )
    async def create_smtp_credential(self, user: Principal, body: SmtpCredentialRequest) -> NewSmtpCredentialAnswer:
        """Create an SMTP credential.

        It is for SMTP submission, and for HTTP Basic at `POST /emails` and `GET /emails/{id}`. The password is in this
        answer only.
        """
        check_line("name", body.name)
        if isinstance(user, KeyPrincipal) and not user.covers(None, None):  # a password has no limits
            raise Refused(Code.FORBIDDEN, NO_MORE)
        name = body.name.strip()
        about(None, {"name": name}, made=itemgetter(0))
        username, password = await self.store.access.create_credential(
            user.account_id, name, by_owner=True, created_by=_creator(user)
        )
        created_at = rfc3339((await self.store.access.credential(user.account_id, username)).created_at)
        return NewSmtpCredentialAnswer(username, password, name, created_at, request_id())

    @for_customers(
        "DELETE /v1/smtp-credentials/{username}",
        (200, RevokedAnswer, "Revoked."),
        Code.NOT_FOUND,
        parameters=(identifier("The credential's username.", "^smtp_[0-9a-f]{32}$", "username"),),
        action="smtp_credential.revoked",
    )
    async def revoke_smtp_credential(self, user: Principal, username: str) -> RevokedAnswer:
        """Stop an SMTP credential from working, for good."""
        await self.store.access.revoke_credential(user.account_id, username)
        self.services.auth.forget()
        return RevokedAnswer(True, request_id())


class ApiKeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    name: Label = ""
    scope: Scope = Scope.SEND
    test: bool = False
    domain: Annotated[str, Meta(max_length=253, examples=["example.com"])] | None = None
    expires_at: Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})] | None = None
    expires_in: Annotated[float, Meta(ge=1, le=MAX_EXPIRY // SECOND)] | None = None


class RollRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST, which may be left out."""

    overlap: Annotated[float, Meta(ge=0, le=MAX_OVERLAP // SECOND)] = DAY // SECOND


class ApiKeyObject(msgspec.Struct):
    """A key by its id; `hint` is its last four characters."""

    id: str
    name: str
    hint: str
    scope: Scope
    test: bool
    domain: str | None
    created_by: str | None
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None
    last_used_from: str | None
    previous_hint: str | None
    previous_expires_at: Time | None
    revoked_at: Time | None


class NewApiKeyAnswer(ApiKeyObject):
    """A new key, or one with a new secret; the key itself is shown only here."""

    key: str
    request_id: str


class ApiKeysAnswer(msgspec.Struct):
    """A page of keys, newest first; `next` goes into `before` for the page that follows."""

    api_keys: list[ApiKeyObject]
    next: str | None
    request_id: str


_KEY_ID = identifier("The key's id.", "^key_[0-9a-f]{32}$")


def _check_is_current(user: Principal) -> None:
    """Refuse the former secret of a key, which would else outlive its overlap by rolling the key once more."""
    if isinstance(user, KeyPrincipal) and user.replaced:
        raise Refused(Code.FORBIDDEN, REPLACED)


class ApiKeyRoutes(Routes):
    @for_customers(
        "GET /v1/api-keys", (200, ApiKeysAnswer, "A page of keys."), parameters=PAGING_BACK, limited=Limited.NARROWED
    )
    async def list_api_keys(self, user: Principal) -> ApiKeysAnswer:
        """List the account's API keys, revoked ones too, newest first.

        An API key that is limited to a domain sees the keys with the same limit only.
        """
        limit, before = page_limit(), request.args.get("before")
        domain = user.domain if isinstance(user, KeyPrincipal) else None
        await self.services.auth.credentials.record_uses()
        found = await self.store.access.newest_keys(user.account_id, before, limit + 1, domain)
        following = found[limit - 1].id if len(found) > limit else None
        shown = [object_from(ApiKeyObject, each) for each in found[:limit]]
        return ApiKeysAnswer(shown, following, request_id())

    @for_customers(
        "POST /v1/api-keys",
        (201, NewApiKeyAnswer, "The key."),
        Code.CONFLICT,
        body=ApiKeyRequest,
        action="api_key.created",
        limited=Limited.NARROWED,
    )
    async def create_api_key(self, user: Principal, body: ApiKeyRequest) -> NewApiKeyAnswer:
        """Create an API key.

        With the scope `send`, the default, it may only send; with `read` only read what became of messages; with `full`
        both; with `manage` also what a developer of the account may do under `/v1`. With a `domain` it sends from that
        one only. The messages of a test key cost nothing and are not delivered. The key is in this answer only. A key
        may make others that may do no more, nor for longer, than itself.
        """
        _check_is_current(user)
        check_line("name", body.name)
        if body.test and body.scope is Scope.MANAGE:
            raise invalid("test", "what a key with the scope manage changes is real: it cannot be a test key")
        domain = None if body.domain is None else account_rules.domain_name(body.domain)
        expires_at = self._expiry(body)
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
        )
        created = await self.store.access.key(key_id)
        return object_from(NewApiKeyAnswer, created, key=key, request_id=request_id())

    def _expiry(self, body: ApiKeyRequest) -> int | None:
        now = self.services.env.now()
        if body.expires_at is None:
            return None if body.expires_in is None else now + int(body.expires_in * SECOND)
        if body.expires_in is not None:
            raise invalid("expires_at", "give either expires_at or expires_in")
        try:
            moment = datetime.fromisoformat(body.expires_at)
            at = round(moment.timestamp() * SECOND) if moment.tzinfo else 0
        except (ValueError, OverflowError):
            at = 0
        if not now < at <= now + MAX_EXPIRY:
            raise invalid("expires_at", "must be a time such as 2027-01-31T00:00:00Z, from now on, within ten years")
        return at

    @for_customers(
        "POST /v1/api-keys/{id}/roll",
        (200, NewApiKeyAnswer, "The key with its new secret."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        body=RollRequest,
        needs_body=False,
        parameters=(_KEY_ID,),
        action="api_key.rolled",
        limited=Limited.NARROWED,
    )
    async def roll_api_key(self, user: Principal, key_id: str, body: RollRequest) -> NewApiKeyAnswer:
        """Give an API key a new secret; the former one works for `overlap` more seconds, a day if it is not given.

        The key keeps its id, its scope and its limits, and belongs to the user who rolled it. The secret before the
        former one ends at once.
        """
        _check_is_current(user)
        found = await self.store.access.key(key_id, user.account_id)
        if isinstance(user, KeyPrincipal) and user.id != key_id and not user.covers(found.domain, found.expires_at):
            raise Refused(Code.FORBIDDEN, NO_MORE)
        about(None, {"name": found.name, "overlap": int(body.overlap)})
        overlap = int(body.overlap * SECOND)
        key = await self.store.access.roll_key(found, overlap, user.account_id, _creator(user))
        self.services.auth.forget()
        rolled = await self.store.access.key(key_id)
        return object_from(NewApiKeyAnswer, rolled, key=key, request_id=request_id())

    @for_customers(
        "DELETE /v1/api-keys/{id}",
        (200, RevokedAnswer, "Revoked."),
        Code.NOT_FOUND,
        parameters=(_KEY_ID,),
        action="api_key.revoked",
        limited=Limited.NARROWED,
    )
    async def revoke_api_key(self, user: Principal, key_id: str) -> RevokedAnswer:
        """Stop an API key from working, for good.

        An API key that is limited to a domain revokes keys with the same limit only.
        """
        _check_is_current(user)
        if not key_id.startswith("key_"):  # the store would take the key itself, which belongs into no address
            raise Refused(Code.NOT_FOUND, "there is no such API key")
        check_reach(user, (await self.store.access.key(key_id, user.account_id)).domain)
        await self.store.access.revoke_key(key_id, user.account_id)
        self.services.auth.forget()
        return RevokedAnswer(True, request_id())
