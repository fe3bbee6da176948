"""Backups from end to end, without a server: made, verified, restored; and everything that is refused."""

import errno
import fcntl
import os
import resource
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio

from appliance.backup import archive
from appliance.backup.archive import verify
from appliance.backup.make import NotMade, make
from appliance.backup.restore import NotRestored, restore
from appliance.backup.unfinished import settle
from appliance.environment import Environment
from appliance.keys import keyfile
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.secrets import TotpSecrets
from appliance.store import FILE_NAME, Store, open_store
from appliance.store.body_parts import INLINE
from appliance.store.pools import EVERY
from appliance.store.sqlite.connection import open_writer
from appliance.system.data_directory import AlreadyRunning, only_server
from tests import stored_mail
from tests.store import test_received

OUTSIDE = Environment()


def nothing(_: float) -> None:
    """Ignores progress."""


def save(data_dir: Path, file: Path) -> None:
    make(data_dir, "mail.example.com", file, OUTSIDE, nothing)


def no_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


async def received_mail(store: Store, account_id: str) -> None:
    """Small and large received messages: two in the queue, two stored."""
    await store.receiving.add(account_id, "in.example.com")
    owner = await store.accounts.find(account_id)
    for mime in (b"Subject: a\r\n\r\n", b"x" * (2 * INLINE)):
        for is_stored in (True, False):
            new = test_received.mail(store, owner, mime, "a@in.example.com")
            await store.received.add([new], None)
            if is_stored:
                (waiting,) = await store.received.claim([new.id], large=True)
                assert await store.received.finish([(waiting, test_received.checked_as(store, "a"))]) == [True]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "data"
    key = keyfile.load_or_create(directory)

    async def fill() -> None:
        async with open_store(directory, OUTSIDE, inline=True) as store:
            account = await stored_mail.account(store)
            await store.access.add_domain(account, "example.com", usable=True)
            await SigningKeys(store, OUTSIDE, key).rotate(account, "example.com")
            deferred = await stored_mail.accept(store, OUTSIDE, account, "a@example.net")
            await stored_mail.defer(store, OUTSIDE, deferred)
            await stored_mail.accept(store, OUTSIDE, account, "b@example.net", "c@example.net")
            await stored_mail.accept(store, OUTSIDE, account, "d@example.net", simulated=True)
            await received_mail(store, account)

    trio.run(fill)
    return directory


@pytest.fixture
def data_dir(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data")


@pytest.fixture
def backup(data_dir: Path, tmp_path: Path) -> Path:
    save(data_dir, tmp_path / "backup.tar")
    return tmp_path / "backup.tar"


def rows(data_dir: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}
    finally:
        connection.close()


def change(data_dir: Path, *statements: str) -> None:
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA foreign_keys = OFF").fetchall()
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()


def replace_key(data_dir: Path) -> bytes:
    (data_dir / keyfile.KEY_FILE).unlink()
    return keyfile.load_or_create(data_dir)


@contextmanager
def small_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def alter(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


async def test_every_row_comes_back_and_nothing_would_be_sent(data_dir: Path, backup: Path, tmp_path: Path) -> None:
    restored = await restore(backup, tmp_path / "elsewhere", OUTSIDE, nothing, force=False)
    before, after = rows(data_dir), rows(tmp_path / "elsewhere")
    ((pool, reason, *_),) = after.pop("pool_holds")
    assert before.pop("pool_holds") == []
    assert after == before
    assert pool == EVERY
    assert str(reason).startswith("restored from a backup of 20")
    assert (restored.waiting.due, restored.waiting.deferred, restored.kept) == (3, 1, None)
    key = tmp_path / "elsewhere" / keyfile.KEY_FILE
    assert key.read_bytes() == (data_dir / keyfile.KEY_FILE).read_bytes()
    modes = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "elsewhere").iterdir()}
    assert modes == {FILE_NAME: 0o600, keyfile.KEY_FILE: 0o400, "appliance.lock": 0o600}


def test_it_is_whole_private_and_tells_how_far_it_is(data_dir: Path, tmp_path: Path) -> None:
    told: list[float] = []
    made = make(data_dir, "mail.example.com", tmp_path / "backup.tar", OUTSIDE, told.append)
    assert (tmp_path / "backup.tar").stat().st_mode & 0o777 == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {"data", "backup.tar"}
    assert told == sorted(told)
    assert told[-1] == 1
    verified = verify(tmp_path / "backup.tar", told.append)
    assert verified.manifest == made
    assert (verified.contents.accounts, verified.contents.messages) == (1, 3)


def test_a_backup_never_replaces_a_file(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("there", "link"):
        with pytest.raises(NotMade, match="never replaces a file"):
            save(data_dir, tmp_path / name)
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_what_fails_half_way_leaves_nothing(data_dir: Path, tmp_path: Path) -> None:
    def interrupt(done: float) -> None:
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(data_dir, "mail.example.com", tmp_path / "backup.tar", OUTSIDE, interrupt)
    assert {each.name for each in tmp_path.iterdir()} == {"data"}


def test_what_another_was_killed_over_is_swept_away(data_dir: Path, tmp_path: Path) -> None:
    """A file as large as the database would stay; but one that is still written to is left alone."""
    dead, living, young = (tmp_path / f".backup.{name}.unfinished" for name in ("dead", "living", "young"))
    for each in (dead, living, young):
        each.write_bytes(b"part of a backup")
    for each in (dead, living):
        os.utime(each, (0, 0))
    with living.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        save(data_dir, tmp_path / "backup.tar")
    assert [each.exists() for each in (dead, living, young)] == [False, True, True]


def test_a_place_without_hard_links_will_do(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyfile.load_or_create(data_dir)
    monkeypatch.setattr(os, "link", no_links)
    save(data_dir, tmp_path / "backup.tar")
    verify(tmp_path / "backup.tar", nothing)
    assert {each.name for each in tmp_path.iterdir()} == {"data", "backup.tar"}


def test_a_place_that_cannot_be_written_is_named(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(NotMade, match=r"gone/backup\.tar cannot be written: no such file or directory"):
        save(data_dir, tmp_path / "gone" / "backup.tar")


def test_a_backup_that_finds_no_room_names_its_own_disk(data_dir: Path, tmp_path: Path) -> None:
    with small_files(), pytest.raises(NotMade, match=r"backup\.tar cannot be written"):
        save(data_dir, tmp_path / "backup.tar")
    assert {each.name for each in tmp_path.iterdir()} == {"data"}


# ---- what is not restored


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["INSERT INTO migrations VALUES (9999, 'later', 0)"], "schema 9999, this version knows only"),
        (["DELETE FROM accounts"], "a row of .* refers to one of accounts that is not there"),
        (["DROP TABLE migrations"], "no database of the appliance"),
        (
            ["PRAGMA writable_schema = ON", "DELETE FROM sqlite_master WHERE name = 'recipients_due'"],
            "the database is damaged: .*never used",
        ),
    ],
)
def test_a_database_that_was_broken_before_is_refused(
    data_dir: Path, tmp_path: Path, statements: list[str], reason: str
) -> None:
    change(data_dir, *statements)
    save(data_dir, tmp_path / "backup.tar")
    with pytest.raises(archive.BrokenBackup, match=reason):
        verify(tmp_path / "backup.tar", nothing)


async def add_webhooks(store: Store, key: bytes) -> None:
    for name in ("acme", "gone"):
        await stored_mail.webhook(store, OUTSIDE, await stored_mail.account(store, name), key)
    await store.webhooks.delete((await store.accounts.named("gone")).id)  # it has nothing to be opened


async def add_factors(store: Store, key: bytes) -> None:
    for name in ("ann", "bob"):
        (user,) = await store.people.of(await stored_mail.account(store, name))
        _, sealed = TotpSecrets(key, OUTSIDE).fresh(user.id)
        await store.second_factors.begin(user.id, sealed)
        if name == "ann":  # that of the other is not in force
            await store.second_factors.confirm(user.id, sealed, 1, ["a"])


async def add_signing_key(store: Store, key: bytes) -> None:
    account = await stored_mail.account(store)
    await store.access.add_domain(account, "example.com", usable=True)
    await SigningKeys(store, OUTSIDE, key).rotate(account, "example.com")


@pytest.mark.parametrize(
    ("add", "secret"),
    [
        (add_webhooks, "the webhook secret of acme"),
        (add_factors, r"the second factor of ann@example\.org"),
        (add_signing_key, r"the signing keys of example\.com"),
    ],
)
def test_a_key_that_does_not_open_a_secret_is_noticed(
    tmp_path: Path, add: Callable[[Store, bytes], Awaitable[None]], secret: str
) -> None:
    """Where nothing else is sealed. Without its key file no backup is made, and no new key takes its place."""
    data_dir = tmp_path / "sealed"
    key = keyfile.load_or_create(data_dir)

    async def fill() -> None:
        async with open_store(data_dir, OUTSIDE, inline=True) as store:
            await add(store, key)

    trio.run(fill)
    save(data_dir, tmp_path / "good.tar")
    contents = verify(tmp_path / "good.tar", nothing).contents
    assert len((*contents.dkim_keys[:1], *contents.webhook_secrets, *contents.second_factors)) == 1
    (data_dir / keyfile.KEY_FILE).unlink()
    with pytest.raises(NotMade, match=r"appliance\.key is missing"):
        save(data_dir, tmp_path / "backup.tar")
    assert not (data_dir / keyfile.KEY_FILE).exists()
    keyfile.load_or_create(data_dir)
    save(data_dir, tmp_path / "backup.tar")
    with pytest.raises(archive.BrokenBackup, match=f"does not open {secret}"):
        verify(tmp_path / "backup.tar", nothing)


def test_signing_keys_of_before_need_no_key_file(data_dir: Path, tmp_path: Path) -> None:
    key = replace_key(data_dir)

    async def rotate() -> None:
        async with open_store(data_dir, OUTSIDE, inline=True) as store:
            await SigningKeys(store, OUTSIDE, key).rotate((await store.accounts.named("acme")).id, "example.com")

    trio.run(rotate)
    save(data_dir, tmp_path / "backup.tar")
    assert len(verify(tmp_path / "backup.tar", nothing).contents.dkim_keys) == 2


def test_where_nothing_is_sealed_yet_the_key_is_made_with_the_backup(tmp_path: Path) -> None:
    async def fill() -> None:
        async with open_store(tmp_path / "new", OUTSIDE, inline=True) as store:
            await stored_mail.account(store)

    trio.run(fill)
    save(tmp_path / "new", tmp_path / "backup.tar")
    assert verify(tmp_path / "backup.tar", nothing).key == (tmp_path / "new" / keyfile.KEY_FILE).read_bytes()


@pytest.mark.parametrize("place", [0, 600, 20_000, -80_000, -3_000, -1])
async def test_a_damaged_backup_changes_nothing(backup: Path, tmp_path: Path, place: int) -> None:
    alter(backup, place)
    with pytest.raises(archive.BrokenBackup):
        await restore(backup, tmp_path / "elsewhere", OUTSIDE, nothing, force=True)
    assert not (tmp_path / "elsewhere").exists()


async def test_an_installation_is_not_overwritten(data_dir: Path, backup: Path) -> None:
    """Where there is a database it stays, unless --force puts it aside; under a running server never."""
    before = rows(data_dir)
    with pytest.raises(NotRestored, match="use --force to put it aside"):
        await restore(backup, data_dir, OUTSIDE, nothing, force=False)
    with only_server(data_dir), pytest.raises(AlreadyRunning, match="systemctl stop appliance"):
        await restore(backup, data_dir, OUTSIDE, nothing, force=True)
    assert rows(data_dir) == before


async def test_what_is_put_aside_can_be_put_back(data_dir: Path, backup: Path) -> None:
    columns = "account_id, address, reason, created_at"
    change(data_dir, f"INSERT INTO suppressions ({columns}) SELECT id, 'x@example.net', 'later', 0 FROM accounts")
    (data_dir / f"{FILE_NAME}-wal").write_bytes(b"a log of another time")
    restored = await restore(backup, data_dir, OUTSIDE, nothing, force=True)
    assert restored.kept is not None
    assert {each.name for each in restored.kept.iterdir()} == {FILE_NAME, f"{FILE_NAME}-wal", keyfile.KEY_FILE}
    assert rows(data_dir)["suppressions"] == []
    (restored.kept / f"{FILE_NAME}-wal").unlink()
    assert len(rows(restored.kept)["suppressions"]) == 1


async def test_a_key_without_its_database_is_not_overwritten(backup: Path, tmp_path: Path) -> None:
    """A key file may be all that is left of something: it too needs --force."""
    keyfile.load_or_create(tmp_path / "elsewhere")
    with pytest.raises(NotRestored, match=r"appliance\.key"):
        await restore(backup, tmp_path / "elsewhere", OUTSIDE, nothing, force=False)


async def test_what_a_killed_restore_left_is_swept_away(backup: Path, tmp_path: Path) -> None:
    left = tmp_path / "elsewhere" / "restoring-abc"
    left.mkdir(parents=True)
    (left / FILE_NAME).write_bytes(b"half of it")
    await restore(backup, tmp_path / "elsewhere", OUTSIDE, nothing, force=False)
    assert not left.exists()


async def test_a_restore_that_finds_no_room_changes_nothing(data_dir: Path, backup: Path) -> None:
    before = rows(data_dir)
    with small_files(), pytest.raises(NotRestored, match=rf"make room where {data_dir} lies"):
        await restore(backup, data_dir, OUTSIDE, nothing, force=True)
    assert rows(data_dir) == before
    assert not [name for name in os.listdir(data_dir) if name.startswith("restoring-")]


# ---- killed at any step

STEPS = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "shutil.copyfile")  # audit events, one a call
MOST_STEPS = 60
ONLY_IN_THE_LOG = "only-in-the-log@example.net"


@pytest.fixture
def crashed(data_dir: Path, tmp_path: Path) -> Path:
    connection = open_writer(data_dir / FILE_NAME)
    sql = "INSERT INTO suppressions (account_id, address, reason, created_at) SELECT id, ?, 'later', 0 FROM accounts"
    connection.execute(sql, (ONLY_IN_THE_LOG,)).fetchall()
    copied = shutil.copytree(data_dir, tmp_path / "crashed")
    connection.close()
    return copied


def restored_until_killed(backup: Path, data_dir: Path, step: int) -> bool:
    child = os.fork()
    if not child:
        left = [step]

        def hook(event: str, _: object) -> None:
            if event in STEPS:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            trio.run(partial(restore, backup, data_dir, OUTSIDE, nothing, force=True))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def old_homes(data_dir: Path, tmp_path: Path) -> list[str]:
    found = []
    for directory in (data_dir, *data_dir.glob("before-restore-*"), *data_dir.glob("replacing-*/before")):
        copy = tmp_path / "look"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in (FILE_NAME, f"{FILE_NAME}-wal", keyfile.KEY_FILE):
            if (directory / name).exists():
                shutil.copy(directory / name, copy / name)
        there = (copy / FILE_NAME).exists() and (copy / keyfile.KEY_FILE).exists()
        if there and ONLY_IN_THE_LOG in {row[1] for row in rows(copy)["suppressions"]}:
            found.append(directory.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the server", "the command"])
def test_killed_at_any_step_the_old_database_and_its_log_stay_together(
    backup: Path, crashed: Path, tmp_path: Path, by: str
) -> None:
    ended, outcomes = False, set()
    for step in range(1, MOST_STEPS):
        data_dir = shutil.copytree(crashed, tmp_path / f"killed{step}")
        ended = restored_until_killed(backup, data_dir, step)
        assert old_homes(data_dir, tmp_path), step
        if by == "the server":
            settle(data_dir)
        else:
            trio.run(partial(restore, backup, data_dir, OUTSIDE, nothing, force=True))
        homes = old_homes(data_dir, tmp_path)
        assert len(homes) == 1, (step, homes)
        in_place = homes == [data_dir.name]
        assert in_place == (ONLY_IN_THE_LOG in {row[1] for row in rows(data_dir)["suppressions"]})
        assert not list(data_dir.glob("replacing-*"))
        assert by == "the server" or not (in_place or list(data_dir.glob("restoring-*")))
        outcomes.add(in_place)
        shutil.rmtree(data_dir)
        if ended:
            break
    assert ended
    assert step > 8
    assert outcomes == ({True, False} if by == "the server" else {False})


async def test_where_files_cannot_have_two_names_they_are_copied(
    backup: Path, crashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links)
    restored = await restore(backup, crashed, OUTSIDE, nothing, force=True)
    assert restored.kept is not None
    assert old_homes(crashed, tmp_path) == [restored.kept.name]
