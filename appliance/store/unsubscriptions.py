"""Who has unsubscribed from what, an address from a tag or a template; and the tags whose messages get a link for it.

An address gets no message of a list that it has unsubscribed from, whether or not that still has links, until the entry
is removed.
"""

from collections.abc import Sequence

from appliance.errors import Code, Refused
from appliance.model.mail import NewMessage, lists_of
from appliance.store.body_parts import SUPPRESSION, add
from appliance.store.engine import Bulk, StorePart, Tx, changed, first, run

_AMONG = Bulk("SELECT account_id, address, list FROM unsubscriptions WHERE (account_id, address) IN (VALUES {(?, ?)})")
_FIND = "SELECT 1 FROM unsubscriptions WHERE account_id = :account_id AND address = :address AND list = :list"
_ACCOUNT = "SELECT 1 FROM accounts WHERE id = :account_id"
_ADD = """INSERT INTO unsubscriptions (account_id, address, list, created_at)
    VALUES (:account_id, :address, :list, :now) ON CONFLICT DO NOTHING"""
_DELETE = "DELETE FROM unsubscriptions WHERE account_id = :account_id AND address = :address AND list = :list"
_TAGS = "SELECT tag FROM unsubscribe_tags WHERE account_id = :account_id ORDER BY tag"
_DELETE_TAGS = "DELETE FROM unsubscribe_tags WHERE account_id = :account_id"
_ADD_TAGS = Bulk("INSERT INTO unsubscribe_tags (account_id, tag) VALUES {(?, ?)} ON CONFLICT DO NOTHING")


def unsubscribed(tx: Tx, news: Sequence[NewMessage]) -> dict[str, str]:
    """The recipients of these messages, by id, that have unsubscribed from a list of their message; and from which."""
    selected = set(_AMONG.run(tx, [(new.account_id, recipient.key) for new in news for recipient in new.recipients]))
    if not selected:
        return {}
    return {
        recipient.id: mail_list
        for new in news
        for mail_list in lists_of(new.tags, new.template_alias)
        for recipient in new.recipients
        if (new.account_id, recipient.key, mail_list) in selected
    }


def unsubscribe(tx: Tx, account_id: str, mail_list: str, address: str, now: int) -> bool:
    row = {"account_id": account_id, "list": mail_list, "address": address, "now": now}
    if first(tx, _ACCOUNT, row) is None or not changed(tx, _ADD, row):
        return False
    add(tx, account_id, SUPPRESSION)
    return True


class Unsubscriptions(StorePart):
    async def add(self, account_id: str, mail_list: str, address: str) -> bool:
        """Unsubscribe an address; False where it was already, or where there is no such account any more."""
        row = {"account_id": account_id, "list": mail_list, "address": address}
        if await self.engine.rows(_FIND, row):  # a link may be posted to as often as one likes, and writes once
            return False
        return await self.engine.write(lambda tx: unsubscribe(tx, account_id, mail_list, address, self.env.now()))

    async def remove(self, account_id: str, mail_list: str, address: str) -> None:
        row = {"account_id": account_id, "list": mail_list, "address": address}

        def work(tx: Tx) -> bool:
            deleted = changed(tx, _DELETE, row)
            add(tx, account_id, -SUPPRESSION * deleted)
            return bool(deleted)

        if not await self.engine.write(work):
            raise Refused(Code.NOT_FOUND, "This address has not unsubscribed from that.")

    # ---- tags whose messages get a link

    async def tags(self, account_id: str) -> list[str]:
        return await self.engine.all(str, _TAGS, {"account_id": account_id})

    async def replace_tags(self, account_id: str, tags: Sequence[str]) -> None:
        """Have messages with these tags get links to unsubscribe, and no others."""

        def work(tx: Tx) -> None:
            run(tx, _DELETE_TAGS, {"account_id": account_id})
            _ADD_TAGS.run(tx, [(account_id, tag) for tag in tags])

        await self.engine.write(work)
