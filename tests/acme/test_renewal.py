"""A certificate is renewed in time and requested again after failures, whatever else goes wrong."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from trio.testing import MockClock

from appliance.acme.issuance import Issuance
from appliance.acme.messages import NotIssued
from appliance.acme.records import STATE, AcmeState, FileRecords, HeldCertificate, read_files
from appliance.acme.renewal import Renewer
from appliance.config.settings import AcmeSettings
from appliance.environment import Environment
from appliance.system.data_directory import write_private_file
from appliance.tls.certificate import ACME_FILE, generate
from tests.acme.authority import DIRECTORY, Authority

DAY, HOUR, MINUTE = 86400.0, 3600.0, 60.0
BEGIN = 1_794_700_000  # seconds since 1970
LIFE = timedelta(hours=9)  # a renewer looks every minute: months of that would be a long test
NAMES = ("mail.example.com",)

Failure = Callable[[], Exception | None]


async def inline(work: Callable[..., None], *given: Any) -> None:
    work(*given)


@dataclass
class Stage:
    """A renewer on a virtual clock, with an authority that fails as long as the test says."""

    directory: Path
    settings: AcmeSettings = field(default_factory=lambda: AcmeSettings(enabled=True, names=NAMES, directory=DIRECTORY))
    failure: Failure = lambda: None
    tries: list[float] = field(default_factory=list)  # seconds since the beginning
    accounts: list[str] = field(default_factory=list)  # the account that each try began with
    behind: float = 0.0  # seconds that the authority's clock is behind ours
    set_back: float = 0.0  # seconds by which our own clock was set back

    def now(self) -> float:
        return BEGIN + trio.current_time() - self.set_back

    async def issue(self, issuance: Issuance, key: ec.EllipticCurvePrivateKey) -> bytes:
        self.tries.append(trio.current_time())
        self.accounts.append(issuance.account)
        authority = Authority(now=datetime.fromtimestamp(self.now() - self.behind, UTC), life=LIFE)
        authority.signer = issuance.key.public_key()
        chain = authority.play(issuance.certificate(key))
        if (failure := self.failure()) is not None:
            raise failure
        await trio.lowlevel.checkpoint()
        return chain

    def state(self) -> AcmeState:
        return read_files(self.directory)[0]

    def held(self) -> HeldCertificate | None:
        return read_files(self.directory)[1]

    def renewer(self, issue: Callable[..., Awaitable[bytes]] | None = None) -> Renewer:
        env = Environment(now=lambda: int(self.now() * 1_000_000), random=lambda: 0.5)
        records = FileRecords(self.settings, self.directory, inline)
        return Renewer(records, issue or self.issue, env)

    async def run(self, seconds: float, renewer: Renewer | None = None) -> None:
        with trio.move_on_after(seconds):
            await (renewer or self.renewer()).run()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "acme")


def refused(**more: Any) -> NotIssued:
    return NotIssued("port 80 is closed", "Open it.", **more)


async def test_the_first_comes_at_once_and_is_renewed(stage: Stage, autojump_clock: MockClock) -> None:
    await stage.run(20 * HOUR)
    assert [round(time / MINUTE) for time in stage.tries] == [0, 351, 702, 1053]
    assert len(set(stage.accounts[1:])) == 1
    assert {file.stat().st_mode & 0o077 for file in (stage.directory, *stage.directory.iterdir())} == {0}


async def test_a_start_with_a_good_one_sends_no_request(stage: Stage, autojump_clock: MockClock) -> None:
    await stage.run(2 * HOUR)
    await stage.run(2 * HOUR)
    assert stage.tries == [0.0]


async def test_one_that_was_made_here_is_replaced(stage: Stage, autojump_clock: MockClock) -> None:
    stage.directory.mkdir(mode=0o700)
    generate(stage.directory / ACME_FILE, stage.directory / ACME_FILE, NAMES[0])
    await stage.run(MINUTE)
    held = stage.held()
    assert held is not None
    assert not held.self_signed


async def test_failures_are_tried_again_ever_more_rarely(
    stage: Stage, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    stage.failure = refused
    await stage.run(24 * HOUR)
    assert [round(time / MINUTE) for time in stage.tries] == [0, 1, 6, 36, 96, 456, 816, 1176]
    state = stage.state()
    assert (state.failures, state.error, state.advice) == (8, "port 80 is closed", "Open it.")
    assert state.next_try > stage.now()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2 + ["ERROR"] * 6
    stage.failure = lambda: None
    await stage.run(7 * HOUR)
    assert stage.state().failures == 0
    assert stage.held() is not None


async def test_a_restart_does_not_ask_sooner(stage: Stage, autojump_clock: MockClock) -> None:
    """A program that is started again and again would use up what the authority allows."""
    stage.failure = refused
    for _ in range(30):
        await stage.run(10)
    assert [round(time) for time in stage.tries] == [0, 60]


async def test_a_reload_asks_at_once(stage: Stage, autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    stage.failure, renewer = refused, stage.renewer()
    nursery.start_soon(renewer.run)
    await trio.sleep(2 * HOUR)
    assert len(stage.tries) == 5
    stage.failure = lambda: None
    for _ in range(2):
        renewer.try_now()
        await trio.sleep(MINUTE)
        assert len(stage.tries) == 6


async def test_other_settings_are_tried_at_once(stage: Stage, autojump_clock: MockClock) -> None:
    stage.failure = refused
    await stage.run(2 * HOUR)
    before, stage.failure = len(stage.tries), lambda: None
    stage.settings = replace(stage.settings, names=("app.example.com",))
    await stage.run(30)
    assert len(stage.tries) == before + 1
    stage.settings = replace(stage.settings, directory=f"{DIRECTORY}/another")
    await stage.run(30)
    assert len(stage.tries) == before + 2
    assert stage.accounts[-1] == ""  # an account is with one authority only


async def test_an_authority_that_wants_to_be_left_alone_is(
    stage: Stage, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.failure = lambda: refused(retry_after=2 * DAY)
    await stage.run(DAY)
    renewer = stage.renewer()
    nursery.start_soon(renewer.run)
    await trio.sleep(HOUR)
    renewer.try_now()
    await trio.sleep(22 * HOUR)
    assert len(stage.tries) == 1
    await trio.sleep(2 * HOUR)
    assert len(stage.tries) == 2


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), RuntimeError("a bug"), trio.TooSlowError()])
async def test_nothing_ends_it(stage: Stage, autojump_clock: MockClock, fault: Exception) -> None:
    stage.failure = lambda: fault
    await stage.run(2 * MINUTE)
    assert len(stage.tries) == 2
    assert stage.state().failures == 2


async def test_a_certificate_that_cannot_be_read_ends_nothing(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("appliance.acme.records.read_certificate", lambda _: 1 / 0)
        await stage.run(5 * MINUTE)
    assert not stage.tries
    await stage.run(MINUTE)
    assert len(stage.tries) == 1


async def test_a_state_that_cannot_be_written_is_remembered(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    write = "appliance.acme.records.write_private_file"
    monkeypatch.setattr(write, full)
    await stage.run(2 * HOUR)
    assert not stage.tries  # without a key for the account no request can be made
    monkeypatch.undo()
    renewer = stage.renewer()
    monkeypatch.setattr(
        write, lambda file, content: full() if file.name == STATE else write_private_file(file, content)
    )
    stage.failure = refused
    await stage.run(2 * HOUR, renewer)
    assert [round(time / MINUTE) - 120 for time in stage.tries] == [0, 1, 6, 36, 96]


async def test_an_authority_that_hangs_is_left(stage: Stage, autojump_clock: MockClock) -> None:
    begun: list[float] = []

    async def hang(issuance: Issuance, key: ec.EllipticCurvePrivateKey) -> bytes:
        begun.append(trio.current_time())
        await trio.sleep_forever()
        raise AssertionError

    await stage.run(15 * MINUTE, stage.renewer(hang))
    assert len(begun) == 2
    assert "took more than 600 s" in stage.state().error


async def test_a_wrong_clock_does_not_ask_all_the_time(stage: Stage, autojump_clock: MockClock) -> None:
    stage.behind = 100 * DAY
    await stage.run(5 * HOUR - MINUTE)
    assert [round(time / HOUR) for time in stage.tries] == [0, 1, 2, 3, 4]
    stage.behind, stage.failure = 0.0, refused
    await stage.run(HOUR)
    stage.set_back = 300 * DAY
    before = len(stage.tries)
    await stage.run(MINUTE)
    assert len(stage.tries) == before + 1


async def test_damaged_files_are_made_anew(stage: Stage, autojump_clock: MockClock) -> None:
    await stage.run(MINUTE)
    for file in stage.directory.iterdir():
        file.write_bytes(b"\xffdamaged")
    await stage.run(MINUTE)
    assert len(stage.tries) == 2
    assert stage.accounts == ["", ""]
    held = stage.held()
    assert held is not None
    assert held.names == set(NAMES)
