"""Everything on disk: domain verbs over one SQLite file, each a single transaction.

SQL and `apsw` are nowhere else. What other packages need of the state in memory (new mail, new posts, recipients under
delivery) are verbs here, too.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from appliance.concurrency.wake import Wake
from appliance.outside import Outside
from appliance.store.access import Access
from appliance.store.accounts import Accounts, FirstStart
from appliance.store.body_parts import BodyParts
from appliance.store.domains import DkimKeys, Domains
from appliance.store.engine import Engine, GroupCommit, Inline
from appliance.store.faults import OnFault, StorageFault
from appliance.store.file_care import CopyWaits, FilesMoved, refuse_waiting_copy
from appliance.store.ledger_folding import LedgerFolding
from appliance.store.mail_log import MailLog
from appliance.store.messages import KeyTaken, MessageRecords, Messages
from appliance.store.migrate import NewerDatabase
from appliance.store.pools import PoolStates, WarmupStates
from appliance.store.queue import Lanes, NewMail, Queue, UnderDelivery
from appliance.store.queue_control import QueueControl
from appliance.store.retention import Deletion
from appliance.store.sessions import Sessions
from appliance.store.space import Space
from appliance.store.statistics import Statistics
from appliance.store.suppressions import Suppressions
from appliance.store.templates import Templates
from appliance.store.upgrade import UpgradeRefused, bring_up_to_date
from appliance.store.webhooks import WebhookHistory, WebhookPosts, WebhookStore

__all__ = ["CopyWaits", "FilesMoved", "KeyTaken", "NewerDatabase", "StorageFault", "UpgradeRefused"]

FILE_NAME = "appliance.db"


class Store:
    def __init__(self, engine: Engine, outside: Outside, path: Path) -> None:
        self.engine = engine
        self.accounts = Accounts(engine, outside)
        self.first_start = FirstStart(engine, outside)
        self.sessions = Sessions(engine, outside)
        self.access = Access(engine, outside)
        self.domains = Domains(engine, outside)
        self.dkim_keys = DkimKeys(engine, outside)
        self.templates = Templates(engine, outside)
        self.suppressions = Suppressions(engine, outside)
        self.webhooks = WebhookStore(engine, outside)
        self.webhook_posts = WebhookPosts(engine, outside)
        self.webhook_history = WebhookHistory(engine, outside, self.webhook_posts)
        self.body_parts = BodyParts(engine, outside)
        self.new_mail = NewMail()  # for delivery
        self.new_simulated_mail = Wake()  # for its simulation
        hand_over = (self.webhook_posts, self.new_mail, self.new_simulated_mail)
        self.messages = Messages(engine, outside, self.body_parts, *hand_over)
        self.mail_log = MailLog(engine, outside)
        self.records = MessageRecords(engine, outside)
        self.statistics = Statistics(engine, outside)
        self.queue = Queue(engine, outside, self.webhook_posts)
        self.lanes = Lanes(engine, outside)
        self.under_delivery = UnderDelivery()
        self.queue_control = QueueControl(engine, outside, self.webhook_posts, self.under_delivery)
        self.warmups = WarmupStates(engine, outside)
        self.pools = PoolStates(engine, outside, self.warmups)
        self.deletion = Deletion(engine, outside)
        self.ledger_folding = LedgerFolding(engine, outside)
        self.space = Space(engine, path)

    async def check_writable(self) -> None:
        """Raise unless the writer can take the lock and commit right now."""
        await self.engine.write(lambda _: None)


@asynccontextmanager
async def open_store(
    data_dir: Path, outside: Outside, *, inline: bool = False, on_failure: OnFault | None = None
) -> AsyncIterator[Store]:
    """Open the database, migrated to this version; close it when everything inside has ended.

    `inline` commits on the caller's thread: for single commands, and for tests on a virtual clock. Otherwise a fault
    of the disk is reported to `on_failure`, which must end the process.
    """
    path = data_dir / FILE_NAME
    refuse_waiting_copy(path)
    bring_up_to_date(path, outside.now(), is_server=not inline)
    engine = Engine(path, Inline(path) if inline else GroupCommit(path, on_failure or _raise))
    store = Store(engine, outside, path)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            store.space.close()
            await engine.close()


def _raise(error: StorageFault) -> None:
    raise error
