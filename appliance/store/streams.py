"""What uses each stream of an account: its keys, credentials and templates, and who has unsubscribed from it."""

from typing import NamedTuple

from msgspec import Struct, field

from appliance.model.streams import TRANSACTIONAL
from appliance.store.engine import StorePart, Tx, rows

_NAMED = {
    "api_keys": """SELECT coalesce(stream, :default), id, name, hint FROM api_keys
        WHERE account_id = :account_id AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)
        ORDER BY id""",
    "smtp_credentials": """SELECT coalesce(stream, :default), username, name, NULL FROM smtp_credentials
        WHERE account_id = :account_id AND revoked_at IS NULL ORDER BY username""",
    "templates": """SELECT stream, alias, '', NULL FROM templates
        WHERE account_id = :account_id AND deleted = 0 AND stream IS NOT NULL ORDER BY alias""",
}
_UNSUBSCRIBED = """SELECT substr(list, 8), count(*), count(CASE WHEN created_at >= :since THEN 1 END)
    FROM unsubscriptions WHERE account_id = :account_id AND list > 'stream:' AND list < 'stream;' GROUP BY list"""


class StreamUser(NamedTuple):
    """A key, credential or template by id; templates have no other name."""

    id: str
    name: str
    hint: str | None  # the last characters of a key


class StreamUse(Struct):
    api_keys: list[StreamUser] = field(default_factory=list)
    smtp_credentials: list[StreamUser] = field(default_factory=list)
    templates: list[StreamUser] = field(default_factory=list)
    unsubscribed: int = 0  # addresses
    unsubscribes: int = 0  # of them since the time asked for


class StreamUses(StorePart):
    async def of(self, account_id: str, since: int) -> dict[str, StreamUse]:
        """Return what uses the account's streams; keys and credentials without a stream use the default one."""
        bindings = {"account_id": account_id, "since": since, "now": self.env.now(), "default": TRANSACTIONAL.name}

        def work(tx: Tx) -> dict[str, StreamUse]:
            uses: dict[str, StreamUse] = {}
            for kind, statement in _NAMED.items():
                for stream, *user in rows(tx, statement, bindings):
                    getattr(uses.setdefault(stream, StreamUse()), kind).append(StreamUser(*user))
            for stream, addresses, lately in rows(tx, _UNSUBSCRIBED, bindings):
                use = uses.setdefault(stream, StreamUse())
                use.unsubscribed, use.unsubscribes = addresses, lately
            return uses

        return await self.engine.scan(work, account_id)
