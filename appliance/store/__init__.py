"""In charge of everything on disk: domain verbs over one SQLite file, each a single transaction."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from appliance.outside import Outside
from appliance.store.accepting import KeyTaken
from appliance.store.access import Access
from appliance.store.accounts import Accounts
from appliance.store.background_reader import Scanner
from appliance.store.disk_faults import OnFault, StorageFault
from appliance.store.dkim import DkimKeys
from appliance.store.domains import Domains
from appliance.store.engine import Engine, GroupCommit, Inline
from appliance.store.expiry import Janitor
from appliance.store.file_watch import CopyWaits, FilesMoved, refuse_waiting_copy
from appliance.store.first_start import FirstStart
from appliance.store.lanes import Lanes
from appliance.store.ledger_folding import OldBooks
from appliance.store.mail_log import MailLog
from appliance.store.message_record import Records
from appliance.store.messages import Messages
from appliance.store.migrate import NewerDatabase
from appliance.store.new_posts import Bell
from appliance.store.pools import Pools
from appliance.store.queue import Queue
from appliance.store.queue_control import QueueControl
from appliance.store.retention import Clearing
from appliance.store.sessions import Sessions
from appliance.store.space import Space
from appliance.store.statistics import Statistics
from appliance.store.suppressions import Suppressions
from appliance.store.templates import Templates
from appliance.store.upgrade import UpgradeRefused, bring_up_to_date
from appliance.store.warmups import Warmups
from appliance.store.webhook_history import WebhookHistory
from appliance.store.webhook_posts import WebhookPosts
from appliance.store.webhooks import Webhooks

__all__ = [
    "CopyWaits",
    "FilesMoved",
    "KeyTaken",
    "NewerDatabase",
    "StorageFault",
    "Store",
    "UpgradeRefused",
    "open_store",
]

FILE_NAME = "appliance.db"


@dataclass(frozen=True, slots=True)
class Store:
    """The verbs, by subject."""

    accounts: Accounts
    sessions: Sessions
    access: Access
    domains: Domains
    templates: Templates
    messages: Messages
    mail_log: MailLog
    statistics: Statistics
    queue: Queue
    queue_control: QueueControl
    records: Records
    lanes: Lanes
    pools: Pools
    warmups: Warmups
    dkim_keys: DkimKeys
    suppressions: Suppressions
    webhooks: Webhooks
    webhook_posts: WebhookPosts
    webhook_history: WebhookHistory
    janitor: Janitor
    clearing: Clearing
    old_books: OldBooks
    space: Space
    first_start: FirstStart
    engine: Engine

    async def check_writable(self) -> None:
        """Raise unless the writer can take the lock and commit right now."""
        await self.engine.write(lambda _: None)


@asynccontextmanager
async def open_store(
    data_dir: Path,
    outside: Outside,
    *,
    inline: bool = False,
    on_failure: OnFault | None = None,
) -> AsyncIterator[Store]:
    """Open the database, migrated to this version; close it when everything inside has ended.

    `inline` commits on the caller's thread: for single commands, and for tests on a virtual clock. Otherwise a fault
    of the disk is told to `on_failure`, which must end the process.
    """
    path = data_dir / FILE_NAME
    refuse_waiting_copy(path)
    bring_up_to_date(path, outside.now(), is_server=not inline)
    writer = Inline(path) if inline else GroupCommit(path, on_failure or _raise)
    engine, bell, scanner = Engine(path, writer), Bell(), Scanner(path, inline=inline)
    warmups = Warmups(engine, outside)
    space = Space(engine, path)
    try:
        yield Store(
            Accounts(engine, outside),
            Sessions(engine, outside),
            Access(engine, outside),
            Domains(engine, outside),
            Templates(engine, outside),
            Messages(engine, outside, bell),
            MailLog(engine, scanner),
            Statistics(engine, scanner, outside),
            Queue(engine, outside, bell),
            QueueControl(engine, outside, bell, scanner),
            Records(engine, scanner),
            Lanes(engine, outside),
            Pools(engine, outside, scanner, warmups),
            warmups,
            DkimKeys(engine, outside),
            Suppressions(engine, outside),
            Webhooks(engine, outside),
            WebhookPosts(engine, outside, bell),
            WebhookHistory(engine, outside, bell, scanner),
            Janitor(engine, outside),
            Clearing(engine, scanner),
            OldBooks(engine, scanner),
            space,
            FirstStart(engine, outside),
            engine,
        )
    finally:
        with trio.CancelScope(shield=True):
            scanner.close()
            space.close()
            await engine.close()


def _raise(error: StorageFault) -> None:
    raise error
