"""The webhook of each account: where it wants its events, with the secret that signs them."""

from typing import Any

import apsw

from appliance.errors import Code, Refused
from appliance.model.webhooks import EventType, SealedSecret, Webhook, WebhookOptions
from appliance.store.engine import StorePart
from appliance.store.sql import one, rows

_COLUMNS = """id, account_id, url, events, enabled, secret, secret_hint, created_at, updated_at, last_success_at,
    last_failure_at"""
# Here and below only the names of our own columns are put into SQL (S608). A deleted webhook has no account, so neither
# of these two finds it.
_OF_ACCOUNT = f"SELECT {_COLUMNS} FROM webhooks WHERE account_id = :account_id"  # noqa: S608
_BY_ID = f"SELECT {_COLUMNS} FROM webhooks WHERE id = :id AND account_id IS NOT NULL"  # noqa: S608
_UPDATE = f"""UPDATE webhooks SET url = :url, events = :events, enabled = :enabled, updated_at = :now
    WHERE account_id = :account_id RETURNING {_COLUMNS}"""  # noqa: S608
_INSERT = f"""INSERT INTO webhooks (id, account_id, url, events, enabled, secret, secret_hint, created_at, updated_at)
    VALUES (:id, :account_id, :url, :events, :enabled, :secret, :secret_hint, :now, :now) RETURNING {_COLUMNS}"""  # noqa: S608
# Its log may be long: the row stays for retention to find that by, without its secret.
_DELETE = """UPDATE webhooks SET account_id = NULL, enabled = 0, secret = x'', secret_hint = ''
    WHERE account_id = :account_id RETURNING id"""
_SIGN_WITH = """UPDATE webhooks SET secret = :secret, secret_hint = :secret_hint, updated_at = :now
    WHERE account_id = :account_id AND id = :id RETURNING id"""


class WebhookStore(StorePart):
    def of(self, account_id: str) -> Webhook | None:
        return self.engine.one(_webhook, _OF_ACCOUNT, {"account_id": account_id})

    def existing(self, account_id: str) -> Webhook:
        return self.engine.read(lambda c: existing_webhook(c, account_id))

    def by_id(self, webhook_id: str) -> Webhook | None:
        """A webhook, unless it has been deleted."""
        return self.engine.one(_webhook, _BY_ID, {"id": webhook_id})

    async def save(
        self, account_id: str, settings: WebhookOptions, new_id: str, new_secret: SealedSecret
    ) -> tuple[Webhook, bool]:
        """Change the account's webhook, or make one with this id and secret; with whether it was made."""
        row: dict[str, Any] = {"id": new_id, "account_id": account_id, "now": self.outside.now()}
        row |= {"secret": new_secret.sealed, "secret_hint": new_secret.hint, "url": settings.url}
        row |= {"events": " ".join(settings.events), "enabled": int(settings.enabled)}

        def work(c: apsw.Connection) -> tuple[Webhook, bool]:
            changed = one(c, _webhook, _UPDATE, row)
            return (changed, False) if changed else (_webhook(*rows(c, _INSERT, row)[0]), True)

        return await self.engine.write(work)

    async def replace_secret(self, webhook: Webhook, secret: SealedSecret) -> None:
        row = {"account_id": webhook.account_id, "id": webhook.id, "now": self.outside.now()}
        if not await self.engine.change(_SIGN_WITH, {**row, "secret": secret.sealed, "secret_hint": secret.hint}):
            raise _none()

    async def delete(self, account_id: str) -> None:
        """Forget the account's webhook, all that waits for it, and its log."""
        if not await self.engine.change(_DELETE, {"account_id": account_id}):
            raise _none()


# ---- steps of a transaction


def existing_webhook(c: apsw.Connection, account_id: str) -> Webhook:
    """The webhook of an account, refused when there is none."""
    webhook = one(c, _webhook, _OF_ACCOUNT, {"account_id": account_id})
    if webhook is None:
        raise _none()
    return webhook


def enabled_webhook(c: apsw.Connection, account_id: str) -> Webhook:
    """The same, refused also when nothing may be posted to it."""
    webhook = existing_webhook(c, account_id)
    if not webhook.enabled:
        raise Refused(Code.CONFLICT, "The webhook is disabled, so nothing is posted to it. Enable it first.")
    return webhook


def _none() -> Refused:
    return Refused(Code.NOT_FOUND, "This account has no webhook. Save one with PUT /v1/webhook.")


def _webhook(id_: str, account_id: str, url: str, events: str, enabled: int, secret: bytes, *rest: Any) -> Webhook:
    wanted = tuple(EventType(each) for each in events.split())
    return Webhook(id_, account_id, url, wanted, bool(enabled), bytes(secret), *rest)
