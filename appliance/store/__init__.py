"""The database, as domain verbs: each is one transaction on SQLite or PostgreSQL.

No other package contains SQL or imports a driver or an engine. The state in memory that packages share (new mail, new
posts, recipients under delivery) belongs to the store, too.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio
import trio.lowlevel
from msgspec import Struct, field

from appliance import __version__
from appliance.concurrency.wake import Wake
from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.model.database import (
    DatabaseRefused,
    NewerDatabase,
    NoDatabase,
    OlderDatabase,
    PendingUpgrade,
    ServerFacts,
    UnfinishedCopy,
)
from appliance.store.access import Access
from appliance.store.accounts import Accounts, FirstStart
from appliance.store.attention import AttentionStore
from appliance.store.audit import Audit
from appliance.store.body_parts import BodyParts, written_bytes
from appliance.store.breakdown import Breakdown
from appliance.store.domains import DkimKeys, Domains
from appliance.store.engine import Engine, OnFault
from appliance.store.event_feed import EventFeed
from appliance.store.feedback import FeedbackStore
from appliance.store.feedback_inbox import FeedbackInbox
from appliance.store.installation import InstallationRecords, SharedCertificates
from appliance.store.mail_log import MailLog
from appliance.store.message_records import MessageRecords
from appliance.store.messages import KeyTaken, Messages, NewBatch
from appliance.store.new_mail import Acceptance, NewMail
from appliance.store.people import People, SavedViews
from appliance.store.pools import PoolStates, WarmupStates
from appliance.store.queue import Queue, UnderDelivery
from appliance.store.queue_control import Lanes, QueueControl
from appliance.store.ramp import Ramping, RampStore
from appliance.store.received import ReceivedStore
from appliance.store.receiving import ReceivingAddresses
from appliance.store.reports import Reports
from appliance.store.request_log import RequestPages
from appliance.store.retention import Deletion, LedgerFolding
from appliance.store.scheduled import ScheduledMail
from appliance.store.search_index import SearchIndex
from appliance.store.sessions import SecondFactors, Sessions
from appliance.store.sources import SourceStore
from appliance.store.sqlite import copy_endpoint
from appliance.store.sqlite.connection import use_little_memory
from appliance.store.sqlite.copy_endpoint import tables as copied_tables
from appliance.store.sqlite.engine import GroupCommit, Inline, SqliteEngine
from appliance.store.sqlite.faults import (
    NO_SPACE_ERRNOS,
    Damaged,
    DamagedDatabase,
    DatabaseFault,
    DiskFault,
    DiskFull,
    failed_writing,
    translated,
)
from appliance.store.sqlite.file_care import (
    MISSED,
    CopyProgress,
    FilesMissed,
    FilesMoved,
    Space,
    checkpoint_file,
    copy_inside,
    refuse_missed,
)
from appliance.store.sqlite.integrity import (
    Contents,
    QuickCheck,
    examine_inside,
    has_secrets,
    quick_check,
    schema_inside,
)
from appliance.store.sqlite.migrate import newest_known
from appliance.store.sqlite.upgrade import UpgradeRefused, bring_up_to_date, pending_upgrade
from appliance.store.statistics import Statistics
from appliance.store.streams import StreamUses
from appliance.store.suppressions import Suppressions, Unsubscriptions
from appliance.store.templates import Templates
from appliance.store.webhook_history import WebhookHistory
from appliance.store.webhooks import WebhookPosts, WebhookStore

if TYPE_CHECKING:  # its driver may not be installed
    from appliance.store.copying import CopyEndpoint
    from appliance.store.postgresql.engine import PostgresEngine

__all__ = [
    "MISSED",
    "Acceptance",
    "DatabaseRefused",
    "FilesMissed",
    "FilesMoved",
    "KeyTaken",
    "NewBatch",
    "NewerDatabase",
    "NoDatabase",
    "OlderDatabase",
    "written_bytes",
]
__all__ += ["NO_SPACE_ERRNOS", "DamagedDatabase", "DatabaseFault", "UnfinishedCopy", "UpgradeRefused"]
__all__ += ["DiskFault", "QuickCheck", "copied_tables", "has_secrets", "newest_known", "quick_check"]
__all__ += ["use_little_memory"]
# For backups, which copy and check the file of the embedded database.
__all__ += ["Contents", "CopyProgress", "Damaged", "DiskFull", "checkpoint_file", "copy_inside"]
__all__ += ["examine_inside", "failed_writing", "schema_inside", "translated"]

FILE_NAME = "appliance.db"
HOME_FILE = "node.id"
WRITABLE_WITHIN = 0.8  # seconds; load balancers wait one or two for /readyz

# Raises unless the node's key file has this fingerprint; None: the database records no key file yet.
CheckKey = Callable[[str | None], None]


class Store:
    def __init__(self, engine: Engine, env: Environment, space: Space | None = None) -> None:
        self.engine = engine
        self.installation = InstallationRecords(engine, env)
        self.shared_certificates = SharedCertificates(engine, env)
        self.accounts = Accounts(engine, env)
        self.first_start = FirstStart(engine, env)
        self.people = People(engine, env)
        self.saved_views = SavedViews(engine, env)
        self.sessions = Sessions(engine, env)
        self.second_factors = SecondFactors(engine, env)
        self.access = Access(engine, env)
        self.audit = Audit(engine, env)
        self.attention = AttentionStore(engine, env)
        self.domains = Domains(engine, env)
        self.dkim_keys = DkimKeys(engine, env)
        self.templates = Templates(engine, env)
        self.suppressions = Suppressions(engine, env)
        self.unsubscriptions = Unsubscriptions(engine, env)
        self.webhooks = WebhookStore(engine, env)
        self.webhook_posts = WebhookPosts(engine, env)
        self.event_feed = EventFeed(engine, env)
        self.webhook_history = WebhookHistory(engine, env, self.webhook_posts)
        self.body_parts = BodyParts(engine, env)
        self.feedback = FeedbackStore(engine, env, self.webhook_posts)
        self.feedback_inbox = FeedbackInbox(engine, env)
        self.receiving = ReceivingAddresses(engine, env)
        self.received = ReceivedStore(engine, env, self.body_parts, self.feedback, self.webhook_posts)
        self.new_mail = NewMail()  # for delivery
        self.new_simulated_mail = Wake()  # for its simulation
        hand_over = (self.webhook_posts, self.new_mail, self.new_simulated_mail)
        self.ramping = Ramping()
        self.messages = Messages(engine, env, self.body_parts, *hand_over)
        self.mail_log = MailLog(engine, env)
        self.search_index = SearchIndex(engine, env)
        self.records = MessageRecords(engine, env)
        self.statistics = Statistics(engine, env)
        self.breakdown = Breakdown(engine, env)
        self.stream_uses = StreamUses(engine, env)
        self.reports = Reports(engine, env)
        self.request_pages = RequestPages(engine, env)
        self.scheduled = ScheduledMail(engine, env, *hand_over)
        self.queue = Queue(engine, env, self.webhook_posts)
        self.lanes = Lanes(engine, env)
        self.under_delivery = UnderDelivery()
        self.queue_control = QueueControl(engine, env, self.webhook_posts, self.under_delivery)
        self.sources = SourceStore(engine, env)
        self.warmups = WarmupStates(engine, env)
        self.pools = PoolStates(engine, env, self.warmups)
        self.ramp = RampStore(engine, env, self.pools)
        self.deletion = Deletion(engine, env)
        self.ledger_folding = LedgerFolding(engine, env)
        self._check: _WriteCheck | None = None  # the running check
        self.space = space  # the embedded database's file

    async def check_writable(self) -> None:
        """Raise unless a write succeeds within WRITABLE_WITHIN. Concurrent callers share one check."""
        if self._check is None:
            self._check = _WriteCheck()
            trio.lowlevel.spawn_system_task(self._run_check, self._check)
        check = self._check
        with trio.move_on_after(WRITABLE_WITHIN):
            await check.ended.wait()
            if check.error is not None:
                raise check.error
            return
        text = "The database does not answer right now. Retry with the same key."
        raise StorageUnavailable(text)

    async def _run_check(self, check: "_WriteCheck") -> None:
        try:
            await self.engine.check_writable()
        except Exception as error:
            check.error = error
        self._check = None
        check.ended.set()


class _WriteCheck(Struct):
    ended: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None


@asynccontextmanager
async def open_store(
    data_dir: Path,
    env: Environment,
    *,
    url: str = "",
    node: str = "",
    address: str = "",
    check_key: CheckKey | None = None,
    inline: bool = False,
    may_upgrade: bool = True,
    on_failure: OnFault | None = None,
) -> AsyncIterator[Store]:
    """Open the file in `data_dir`, or the PostgreSQL of a URL, migrated to this version; close it at the end.

    Without `may_upgrade` raise OlderDatabase or NoDatabase instead of changing the schema. `check_key` may refuse a
    PostgreSQL before anything is written; a server has a node name there, a command does not. `inline` writes a file on
    the caller's thread, for commands and tests. Otherwise a disk fault goes to `on_failure`, which ends the process.
    """
    if url:
        engine = await _open_server(data_dir, env, url, node, address, check_key, may_upgrade=may_upgrade)
        if not inline:
            await engine.connect()
        store = Store(engine, env)
    else:
        path = data_dir / FILE_NAME
        refuse_missed(path)
        bring_up_to_date(path, env.now(), is_server=not inline, may_upgrade=may_upgrade)
        file = SqliteEngine(path, Inline(path) if inline else GroupCommit(path, on_failure or _raise))
        store = Store(file, env, Space(file, path))
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            if store.space is not None:
                store.space.close()
            await store.engine.close()


async def _open_server(
    data_dir: Path,
    env: Environment,
    url: str,
    node: str,
    address: str,
    check_key: CheckKey | None,
    *,
    may_upgrade: bool,
) -> "PostgresEngine":
    with driver_needed():
        from appliance.store.postgresql.engine import PostgresEngine, prepare
        from appliance.store.postgresql.migrate import newest_known as newest_there
        from appliance.store.postgresql.nodes import NodeIdentity

    def identity() -> NodeIdentity:
        return NodeIdentity(env.identifier("node"), node, _home(data_dir), address, __version__, newest_there())

    file = data_dir / HOME_FILE
    earlier = file.read_text() if node and file.exists() else ""
    identify = identity if node else None
    joined = await prepare(url, env.now(), check_key, identify, earlier, may_upgrade=may_upgrade)
    return PostgresEngine(url, joined)


async def pending(data_dir: Path, url: str) -> PendingUpgrade:
    """What opening the database would change in it; only read. Raises DatabaseRefused or NewerDatabase."""
    if not url:
        return pending_upgrade(data_dir / FILE_NAME)
    with driver_needed():
        from appliance.store.postgresql.examine import pending_upgrade as pending_there

    return await trio.to_thread.run_sync(pending_there, url, limiter=trio.CapacityLimiter(1))


async def examine_server(url: str, env: Environment) -> ServerFacts:
    """How a PostgreSQL is set up, and how it does. Raises DatabaseRefused."""
    with driver_needed():
        from appliance.store.postgresql.examine import examine

    return await trio.to_thread.run_sync(examine, url, env.now, limiter=trio.CapacityLimiter(1))


def copy_source(data_dir: Path, url: str) -> "AbstractContextManager[CopyEndpoint]":
    if url:
        with driver_needed():
            from appliance.store.postgresql import copy_endpoint as server_endpoint

        return server_endpoint.source(url, copied_tables())
    refuse_missed(data_dir / FILE_NAME)
    return copy_endpoint.source(data_dir / FILE_NAME)


def copy_target(where: str | Path) -> "AbstractContextManager[CopyEndpoint]":
    if isinstance(where, str):
        with driver_needed():
            from appliance.store.postgresql import copy_endpoint as server_endpoint

        return server_endpoint.target(where)
    return copy_endpoint.target(where / FILE_NAME)


@contextmanager
def driver_needed() -> Iterator[None]:
    """Turn the ImportError of a missing PostgreSQL driver into DatabaseRefused."""
    try:
        yield
    except ImportError as error:
        text = "psycopg is not installed: pip install 'mail-appliance[postgresql]'"
        raise DatabaseRefused(text) from error


def _home(data_dir: Path) -> str:
    """Return a name that only the node on this data directory knows."""
    path = data_dir / HOME_FILE
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(secrets.token_hex(16))
    return path.read_text()


def _raise(error: StorageFault) -> None:
    raise error
