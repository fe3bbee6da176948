"""Everything on disk: domain verbs over one SQLite file, each a single transaction.

SQL and `apsw` are nowhere else. What other packages need of the state in memory (new mail, new posts, recipients under
delivery) are verbs here, too.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from appliance.concurrency.wake import Wake
from appliance.outside import Outside
from appliance.store.accepting import KeyTaken
from appliance.store.access import Access
from appliance.store.accounts import Accounts, FirstStart
from appliance.store.background_reader import Scanner
from appliance.store.body_parts import BodyParts
from appliance.store.domains import DkimKeys, Domains
from appliance.store.engine import Engine, GroupCommit, Inline
from appliance.store.faults import OnFault, StorageFault
from appliance.store.file_watch import CopyWaits, FilesMoved, refuse_waiting_copy
from appliance.store.ledger_folding import LedgerFolding
from appliance.store.mail_log import MailLog
from appliance.store.message_record import MessageRecords
from appliance.store.messages import Messages
from appliance.store.migrate import NewerDatabase
from appliance.store.new_mail import NewMail
from appliance.store.pools import PoolStates, WarmupStates
from appliance.store.queue import Lanes, Queue
from appliance.store.queue_control import QueueControl
from appliance.store.retention import Deletion
from appliance.store.sessions import Sessions
from appliance.store.space import Space
from appliance.store.statistics import Statistics
from appliance.store.suppressions import Suppressions
from appliance.store.templates import Templates
from appliance.store.upgrade import UpgradeRefused, bring_up_to_date
from appliance.store.webhook_posts import NewPosts, WebhookHistory, WebhookPosts
from appliance.store.webhooks import WebhookStore

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
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
    records: MessageRecords
    lanes: Lanes
    pools: PoolStates
    warmups: WarmupStates
    dkim_keys: DkimKeys
    suppressions: Suppressions
    webhooks: WebhookStore
    webhook_posts: WebhookPosts
    webhook_history: WebhookHistory
    deletion: Deletion
    body_parts: BodyParts
    ledger_folding: LedgerFolding
    space: Space
    first_start: FirstStart
    engine: Engine
    new_mail: NewMail  # for delivery
    new_simulated_mail: Wake  # for its simulation

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
    of the disk is reported to `on_failure`, which must end the process.
    """
    path = data_dir / FILE_NAME
    refuse_waiting_copy(path)
    bring_up_to_date(path, outside.now(), is_server=not inline)
    writer = Inline(path) if inline else GroupCommit(path, on_failure or _raise)
    engine, new_posts, scanner = Engine(path, writer), NewPosts(), Scanner(path, inline=inline)
    warmups = WarmupStates(engine, outside)
    space = Space(engine, path)
    parts = BodyParts(engine)
    new_mail, new_simulated_mail = NewMail(), Wake()
    messages = Messages(
        engine,
        outside,
        scanner,
        parts,
        new_posts=new_posts,
        new_mail=new_mail,
        new_simulated_mail=new_simulated_mail,
    )
    try:
        yield Store(
            accounts=Accounts(engine, outside),
            sessions=Sessions(engine, outside),
            access=Access(engine, outside),
            domains=Domains(engine, outside),
            templates=Templates(engine, outside),
            messages=messages,
            mail_log=MailLog(engine, scanner),
            statistics=Statistics(engine, scanner, outside),
            queue=Queue(engine, outside, new_posts),
            queue_control=QueueControl(engine, outside, new_posts, scanner),
            records=MessageRecords(engine, scanner),
            lanes=Lanes(engine, outside),
            pools=PoolStates(engine, outside, scanner, warmups),
            warmups=warmups,
            dkim_keys=DkimKeys(engine, outside),
            suppressions=Suppressions(engine, outside),
            webhooks=WebhookStore(engine, outside),
            webhook_posts=WebhookPosts(engine, outside, new_posts),
            webhook_history=WebhookHistory(engine, outside, new_posts, scanner),
            deletion=Deletion(engine, scanner, outside),
            body_parts=parts,
            ledger_folding=LedgerFolding(engine, scanner),
            space=space,
            first_start=FirstStart(engine, outside),
            engine=engine,
            new_mail=new_mail,
            new_simulated_mail=new_simulated_mail,
        )
    finally:
        with trio.CancelScope(shield=True):
            scanner.close()
            space.close()
            await engine.close()


def _raise(error: StorageFault) -> None:
    raise error
