"""Deaths at named points of the program, which the kill loop only meets by chance.

The server dies before and after each kind of commit, and between an answer from outside and its record, under load
(tests/torture/load.py says what must hold afterwards). The commands for backup, restore, upgrade and new DKIM keys die
before any one of the changes that they make to files and databases: what they were to make or to change is then whole
or as it was, and the same command succeeds when it is repeated.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio

from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.store import FILE_NAME
from appliance.store.pools import RESTORED
from appliance.store.sqlite.connection import open_writer
from appliance.store.sqlite.migrate import migrate, migrations, newest_known
from tests.fork_client import fork
from tests.torture.dying import DIES_AT, POINTS, STEPS, STEPS_FILE
from tests.torture.load import HOOK, Load, dead_rows, loaded

DIED_WITHIN = 60.0  # seconds of load in which a point is reached
LATEST = 30  # the last arrival at a point of the server that is tried
ENDED_WITHIN = 60.0  # seconds, of a command
TRIES, BUSY = 5, "The storage cannot take writes right now"  # a server under load has the lock, on a busy machine
EARLIER = 13  # the schema that is upgraded: the next step reads what suppressions say
ROWS = 5_000

_SELECTOR = re.compile(rb"^DKIM-Signature:[^:]*?\bs=([\w-]+);", re.MULTILINE)
_PENDING = "SELECT event_id FROM webhook_deliveries WHERE next_attempt_at IS NOT NULL"
_KEYS = "SELECT selector, algorithm, pending FROM dkim_keys WHERE retired_at IS NULL ORDER BY algorithm"


# ---- the server


async def _server_dies(load: Load, point: str, number: int) -> None:
    running = load.made.running
    assert not running.is_alive()
    running.environment[DIES_AT] = f"{point}:{number}"
    try:
        await load.begin()
    except RuntimeError:  # it was there before it was ready, by what had been left
        if running.wait() != -signal.SIGKILL:
            raise
    del running.environment[DIES_AT]
    with trio.move_on_after(DIED_WITHIN):
        while running.is_alive():  # noqa: ASYNC110 - a process
            await trio.sleep(0.01)
    if running.is_alive():
        load.wrong.append(f"{point}: not reached {number} times")
        await load.kill()
        return
    before = load.may_come.total()
    await load.died()
    if (code := running.wait()) != -signal.SIGKILL:
        load.wrong.append(f"{point}: exit code {code}")
    elif point in ("after the remote's 250", "before a result is committed") and load.may_come.total() == before:
        load.wrong.append(f"{point}: a record of it is there already")
    elif point in ("after the receiver's 2xx", "before a post is committed"):
        pending = {event for (event,) in dead_rows(running.data_dir, _PENDING)}
        if not pending & {post.json()["id"] for post in load.receiver.at(HOOK)}:
            load.wrong.append(f"{point}: a record of it is there already")


# ---- commands


@dataclass(frozen=True)
class Command:
    """A command of the shell on one installation, which may be let die."""

    config: Path

    @property
    def data_dir(self) -> Path:
        return self.config.parent / "data"

    async def run(self, *words: str, step: int = 0, steps: Path | None = None) -> tuple[int, str]:
        """Its exit code and what it said; with a step it dies before that."""
        return await trio.to_thread.run_sync(self._run, words, step, steps)

    def _run(self, words: tuple[str, ...], step: int, steps: Path | None) -> tuple[int, str]:
        environment = dict(os.environ)
        if step:
            environment[DIES_AT] = f"{STEPS}:{step}"
        if steps is not None:
            environment[STEPS_FILE] = str(steps)
        with tempfile.TemporaryFile() as said:
            ran = fork(
                *(*words, "--json", "--config", str(self.config)),
                directory=self.config.parent,
                environment=environment,
                stdout=said,
                stderr=said,
            )
            try:
                code = ran.wait(ENDED_WITHIN)
            except subprocess.TimeoutExpired:
                ran.kill()
                code = 124
            said.seek(0)
            return code, said.read().decode()

    async def steps(self, *words: str) -> int:
        file = self.config.parent / "steps"
        code, said = await self.run(*words, step=10**9, steps=file)
        assert code == 0, said
        return int(file.read_text())

    def copied(self, directory: Path) -> "Command":
        """The same on a copy of the data directory, which may be in the place of an earlier one."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        shutil.copytree(self.data_dir, directory / "data")
        text = self.config.read_text().replace(str(self.data_dir), str(directory / "data"))
        (directory / "config.toml").write_text(text)
        return Command(directory / "config.toml")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return dead_rows(self.data_dir, query)

    def messages(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT id FROM messages ORDER BY id")

    def key(self) -> bytes:
        return (self.data_dir / KEY_FILE).read_bytes()

    def damage(self) -> str:
        found = self.rows("PRAGMA integrity_check")
        return "" if found == [("ok",)] else f"damaged: {found[:3]}"


class Failed(Exception):
    """Something that must hold does not."""


def _must(holds: object, what: str) -> None:
    if not holds:
        raise Failed(what)


async def _succeeds(command: Command, *words: str) -> None:
    for _ in range(TRIES):
        code, said = await command.run(*words)
        if BUSY not in said:
            break
    _must(code == 0, f"`{' '.join(words)}` ended with {code}: {said[-300:]}")


async def _backup_dies(command: Command, load: Load, step: int, file: Path) -> None:
    """It is there and whole, or not there; and repeated it has all that was acknowledged before."""
    acknowledged = {*chain(*load.acknowledged.values()), *load.submitted.values()}
    await command.run("backup", str(file), step=step)
    if file.name not in os.listdir(file.parent):
        await _succeeds(command, "backup", str(file))
    await _succeeds(command, "verify", str(file))
    with tempfile.TemporaryDirectory(prefix="torture-", dir=file.parent) as directory:
        empty = Command(Path(directory) / "config.toml")
        empty.config.write_text(command.config.read_text().replace(str(command.data_dir), str(empty.data_dir)))
        await _succeeds(empty, "restore", str(file))
        missing = acknowledged - {message for (message,) in empty.messages()}
        _must(not missing, f"acknowledged before the backup and not in it: {len(missing)}")
        _must(not empty.damage(), empty.damage())


async def _restore_dies(command: Command, step: int, file: Path, old: object, new: object) -> None:
    """What was there is there, or all of the backup, paused; repeated it is the latter."""
    keys = command.key(), _other_key(command)
    await command.run("restore", str(file), "--force", step=step)
    await _succeeds(command, "account", "list")  # any command completes one that was decided
    found = command.messages()
    _must(command.key() == keys[found == old], "the key of the one, the database of the other")
    _must(found in (old, new), f"neither what was there nor the backup: {len(found)} messages")
    _must(not command.damage(), command.damage())
    held = any(str(reason).startswith(RESTORED) for (reason,) in command.rows("SELECT reason FROM pool_holds"))
    _must(held is (found == new), "not paused, or paused without a restore")
    await _succeeds(command, "restore", str(file), "--force")
    _must(command.messages() == new, "repeated, it is not the backup")
    kept = [dead_ids(each) for each in sorted(command.data_dir.glob("before-restore-*"))]
    _must(old in kept, "what was there before is not kept")
    left = [each.name for prefix in ("restoring-", "replacing-") for each in command.data_dir.glob(f"{prefix}*")]
    _must(not left, f"left behind: {left}")


def _other_key(command: Command) -> bytes:
    """Give the installation a key of its own, which is not that of the backup; the key."""
    with tempfile.TemporaryDirectory() as directory:
        load_or_create(Path(directory))
        shutil.copy(Path(directory) / KEY_FILE, command.data_dir / f"{KEY_FILE}.new")
    (command.data_dir / f"{KEY_FILE}.new").replace(command.data_dir / KEY_FILE)
    return command.key()


def dead_ids(directory: Path) -> list[tuple[Any, ...]]:
    return dead_rows(directory, "SELECT id FROM messages ORDER BY id")


async def _upgrade_dies(command: Command, step: int) -> None:
    """The schema is the old one or the new one, with all rows; repeated it is the new one."""
    await command.run("upgrade", step=step)
    schema = "SELECT max(number) FROM migrations"
    _must(command.rows(schema) in ([(EARLIER,)], [(newest_known(),)]), f"half-way: {command.rows(schema)}")
    await _succeeds(command, "upgrade")
    _must(command.rows(schema) == [(newest_known(),)], f"still {command.rows(schema)}")
    _must(command.rows("SELECT count(*) FROM suppressions") == [(ROWS,)], "rows are missing")
    _must(not command.damage(), command.damage())
    left = [each.name for end in ("unfinished", "rehearsal") for each in command.data_dir.glob(f"*.{end}*")]
    _must(not left, f"left behind: {left}")


async def _rotation_dies(command: Command, step: int, *words: str) -> None:
    """One key of each kind signs, and all new ones are there or none; repeated they are."""
    before = command.rows(_KEYS)
    await command.run(*words, step=step)
    for repeated in (False, True):
        if repeated:
            await _succeeds(command, *words)
        keys = command.rows(_KEYS)
        signing = [kind for _, kind, pending in keys if not pending]
        _must(signing == ["ed25519", "rsa"], f"signing: {signing}")
        _must(len(keys) in (2, 4), f"keys: {keys}")
    signed = {selector for selector, _, pending in before if not pending}
    sign = {selector for selector, _, pending in command.rows(_KEYS) if not pending}
    _must(not signed & sign if "--now" in words else signed == sign, f"signed by {signed}, then by {sign}")


def _earlier_installation(command: Command) -> None:
    """Make a database of an earlier version in the place of the present one."""
    shutil.rmtree(command.data_dir)
    command.data_dir.mkdir(mode=0o700)
    steps = [step for step in migrations() if step.number <= EARLIER]
    with (
        patch("appliance.store.sqlite.migrate.migrations", lambda: steps),
        closing(open_writer(command.data_dir / FILE_NAME)) as connection,
    ):
        migrate(connection, 0)
        connection.execute("INSERT INTO accounts (id, name, created_at) VALUES ('acc_1', 'demo', 0)")
        listed = [(f"a{number}@x.example", "bounced: 550 5.1.1 no" * (number % 9)) for number in range(ROWS)]
        connection.executemany("INSERT INTO suppressions VALUES ('acc_1', ?, ?, 0)", listed)


# ---- all of it


@dataclass
class Trial:
    directory: Path
    choose: random.Random
    arrivals: int  # of each point of the server
    steps: int  # of each command, at most
    told: Callable[[str], None]
    deaths: int = 0
    wrong: list[str] = field(default_factory=list)

    async def run(self) -> Load:
        home = self.directory / "installation"
        home.mkdir()
        async with loaded(home, self.choose.randrange(10**6)) as load:
            await load.kill()
            for number in range(self.arrivals):
                for point in POINTS:
                    self.told(f"{point}, {number + 1} of {self.arrivals}")
                    await _server_dies(load, point, self.choose.randint(1, LATEST))
            self.deaths += load.deaths
            command = Command(load.made.running.config_file)
            await load.begin()
            file = await self._beside_the_server(command, load)
            await load.kill()
            await load.settle()
        await self._alone(command, file)
        return load

    async def _each(self, name: str, steps: int, dies: Callable[[int], Awaitable[None]]) -> None:
        for step in sorted(self.choose.sample(range(1, steps + 1), min(self.steps, steps))):
            self.told(f"{name}, step {step} of {steps}")
            self.deaths += 1
            try:
                await dies(step)
            except Failed as failed:
                self.wrong.append(f"{name}, step {step} of {steps}: {failed}")

    async def _beside_the_server(self, command: Command, load: Load) -> Path:
        first = self.directory / "first.tar"
        steps = await command.steps("backup", str(first))

        async def backup(step: int) -> None:
            await _backup_dies(command, load, step, self.directory / f"{step}.tar")

        await self._each("backup", steps, backup)
        account = load.made.running.account
        rotate = "domain", "rotate", account.name, account.domain
        steps = await command.steps(*rotate, "--now")
        await self._each("rotate --now", steps, lambda step: _rotation_dies(command, step, *rotate, "--now"))

        async def both(step: int) -> None:
            await _rotation_dies(command, step, *rotate)
            await _rotation_dies(command, step, *rotate, "--now")  # of what is pending

        await self._each("rotate", steps, both)
        known = {selector.encode() for (selector,) in command.rows("SELECT selector FROM dkim_keys")}
        used = {selector for each in load.sink.taken for selector in _SELECTOR.findall(each.data)}
        if not used or used - known:
            self.wrong.append(f"signed with keys that are not there: {sorted(used - known)}")
        return first

    async def _alone(self, command: Command, file: Path) -> None:
        """Restores and upgrades, which take an installation without a server."""
        other = self.directory / "other"
        old = command.messages()
        restored = command.copied(other)
        steps = await restored.steps("restore", str(file), "--force")
        new = restored.messages()
        assert new != old

        async def restore(step: int) -> None:
            await _restore_dies(command.copied(other), step, file, old, new)

        await self._each("restore", steps, restore)
        earlier = command.copied(self.directory / "earlier")
        _earlier_installation(earlier)
        steps = await earlier.copied(other).steps("upgrade")
        await self._each("upgrade", steps, lambda step: _upgrade_dies(earlier.copied(other), step))


def run(seed: int, quick: bool, told: Callable[[str], None]) -> tuple[str, list[str]]:
    """All points, each now and then at another arrival; what was done, and what does not hold."""
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        trial = Trial(Path(directory), random.Random(seed), *((1, 1) if quick else (12, 40)), told)
        load = trio.run(trial.run)
        return f"{trial.deaths} deaths, {load.messages:,} messages, {load.again} again", trial.wrong + load.check()
