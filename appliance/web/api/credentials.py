"""SMTP credentials and API keys, managed by the owner of the account: /v1/smtp-credentials and /v1/api-keys.

A password and a key are shown once, when they are made; the store has their hashes only.
"""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.errors import Code, Refused
from appliance.message.characters import LINE_PATTERN
from appliance.model.mail import Scope, User
from appliance.times import rfc3339
from appliance.web.answer import Time, object_from
from appliance.web.app import Routes, check_line, page_limit, request_id
from appliance.web.operations import PAGING_BACK, for_customers, identifier

Label = Annotated[str, Meta(max_length=64, examples=["web shop"], extra_json_schema={"pattern": LINE_PATTERN})]


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
    async def list_smtp_credentials(self, user: User) -> SmtpCredentialsAnswer:
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
    )
    async def create_smtp_credential(self, user: User, body: SmtpCredentialRequest) -> NewSmtpCredentialAnswer:
        """Create an SMTP credential.

        It is for SMTP submission, and for HTTP Basic at `POST /emails` and `GET /emails/{id}`. The password is in this
        answer only.
        """
        check_line("name", body.name)
        name = body.name.strip()
        username, password = await self.store.access.create_credential(user.account_id, name, by_owner=True)
        created_at = rfc3339((await self.store.access.credential(user.account_id, username)).created_at)
        return NewSmtpCredentialAnswer(username, password, name, created_at, request_id())

    @for_customers(
        "DELETE /v1/smtp-credentials/{username}",
        (200, RevokedAnswer, "Revoked."),
        Code.NOT_FOUND,
        parameters=(identifier("The credential's username.", "^smtp_[0-9a-f]{32}$", "username"),),
    )
    async def revoke_smtp_credential(self, user: User, username: str) -> RevokedAnswer:
        """Stop an SMTP credential from working, for good."""
        await self.store.access.revoke_credential(user.account_id, username)
        self.services.auth.forget()
        return RevokedAnswer(True, request_id())


class ApiKeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    name: Label = ""
    scope: Scope = Scope.SEND
    test: bool = False


class ApiKeyObject(msgspec.Struct):
    """A key by its id; `hint` is its last four characters."""

    id: str
    name: str
    hint: str
    scope: Scope
    test: bool
    created_at: Time
    last_used_at: Time | None
    revoked_at: Time | None


class NewApiKeyAnswer(ApiKeyObject):
    """A new key; the key itself is shown only here."""

    key: str
    request_id: str


class ApiKeysAnswer(msgspec.Struct):
    """A page of keys, newest first; `next` goes into `before` for the page that follows."""

    api_keys: list[ApiKeyObject]
    next: str | None
    request_id: str


class ApiKeyRoutes(Routes):
    @for_customers("GET /v1/api-keys", (200, ApiKeysAnswer, "A page of keys."), parameters=PAGING_BACK)
    async def list_api_keys(self, user: User) -> ApiKeysAnswer:
        """List the account's API keys, revoked ones too, newest first."""
        limit = page_limit()
        await self.services.auth.credentials.record_uses()
        found = await self.store.access.newest_keys(user.account_id, request.args.get("before"), limit + 1)
        following = found[limit - 1].id if len(found) > limit else None
        shown = [object_from(ApiKeyObject, each) for each in found[:limit]]
        return ApiKeysAnswer(shown, following, request_id())

    @for_customers("POST /v1/api-keys", (201, NewApiKeyAnswer, "The key."), Code.CONFLICT, body=ApiKeyRequest)
    async def create_api_key(self, user: User, body: ApiKeyRequest) -> NewApiKeyAnswer:
        """Create an API key.

        With the scope `send`, the default, it may only send; with `full` it may also read what became of messages. The
        messages of a test key cost nothing and are not delivered. The key is in this answer only.
        """
        check_line("name", body.name)
        key_id, key = await self.store.access.create_key(
            user.account_id, scope=body.scope, test=body.test, name=body.name.strip(), by_owner=True
        )
        created = await self.store.access.key(key_id)
        return object_from(NewApiKeyAnswer, created, key=key, request_id=request_id())

    @for_customers(
        "DELETE /v1/api-keys/{id}",
        (200, RevokedAnswer, "Revoked."),
        Code.NOT_FOUND,
        parameters=(identifier("The key's id.", "^key_[0-9a-f]{32}$"),),
    )
    async def revoke_api_key(self, user: User, key_id: str) -> RevokedAnswer:
        """Stop an API key from working, for good."""
        if not key_id.startswith("key_"):  # the store would take the key itself, which belongs into no address
            raise Refused(Code.NOT_FOUND, "there is no such API key")
        await self.store.access.revoke_key(key_id, user.account_id)
        self.services.auth.forget()
        return RevokedAnswer(True, request_id())
