"""The finding on the certificate that ACME renews, in each of its states."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import trio
from cryptography import x509

from appliance.acme.messages import new_key
from appliance.acme.records import STATE, AcmeState, state_content
from appliance.doctor import Finding, FindingLevel
from appliance.tls.certificate import ACME_FILE, generate, private_pem
from tests.acme.authority import issued
from tests.doctor.world import HOST, World

OK, FAULT, WARNING = FindingLevel.OK, FindingLevel.FAULT, FindingLevel.WARNING
FAILED = AcmeState(failures=3, error="port 80 of a is closed", advice="Open it.", next_try=1_794_700_000)


@pytest.fixture
def files(world: World) -> Path:
    """Where ACME keeps its things, on a machine whose listeners both show its certificate."""
    world.settings |= {"cert": "", "key": "", "acme": '[acme]\nenabled = true\nbind = ["127.0.0.1:0"]'}
    made = world.data_dir / "acme"
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    return made


def hold(files: Path, begun: float, lasts: float, name: str = HOST) -> None:
    """A certificate that began so many days ago, and lasts so many in all."""
    key, begin = new_key(), datetime.now(UTC) - timedelta(days=begun)
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    chain = issued(new_key(), key.public_key(), names, begin, begin + timedelta(days=lasts))
    (files / ACME_FILE).write_bytes(private_pem(key) + chain)


def examined(world: World) -> Finding:
    (found,) = [each for each in trio.run(world.examine) if each.check == "certificate"]
    assert found.subject == "acme"
    return found


def test_a_good_one(world: World, files: Path) -> None:
    """One line, though two listeners show it, with the day until which it is good."""
    hold(files, 0, 90)
    found = examined(world)
    assert found.level is OK
    assert found.text == f"for {HOST} until {datetime.now(UTC) + timedelta(days=90):%Y-%m-%d}, renewed automatically"


def test_a_short_lived_one_is_no_matter(world: World, files: Path) -> None:
    hold(files, 3, 6)
    assert examined(world).level is OK


@pytest.mark.parametrize("made_here", [True, False])
def test_none_yet(world: World, files: Path, made_here: bool) -> None:
    """One that was made here is none; without a try there is nothing to blame, after one its error is told."""
    if made_here:
        generate(files / ACME_FILE, files / ACME_FILE, HOST)
    found = examined(world)
    assert (found.level, found.text) == (WARNING, "none yet: it was not requested")
    (files / STATE).write_bytes(state_content(FAILED))
    found = examined(world)
    assert (found.level, found.advice) == (FAULT, "Open it.")
    assert found.text == "none yet: port 80 of a is closed (failed 3 times, next attempt at 2026-11-14 23:46 UTC)"


def test_a_renewal_that_fails(world: World, files: Path) -> None:
    (files / STATE).write_bytes(state_content(FAILED))
    hold(files, 65, 90)
    found = examined(world)
    assert (found.level, found.advice) == (WARNING, "Open it.")
    assert "and is not renewed" in found.text
    assert "port 80 of a is closed (failed 3 times" in found.text
    hold(files, 91, 90)
    assert examined(world).level is FAULT
    (files / STATE).write_bytes(state_content(AcmeState()))
    assert "expired on" in examined(world).text


def test_the_authority_wants_to_be_left_alone(world: World, files: Path) -> None:
    (files / STATE).write_bytes(state_content(msgspec.structs.replace(FAILED, not_before=1_794_800_000)))
    assert "next attempt at 2026-11-16 03:33 UTC" in examined(world).text


def test_a_renewal_that_is_not_tried(world: World, files: Path) -> None:
    """A server that has not run for a month, or whose clock stands, is told of."""
    hold(files, 80, 90)
    found = examined(world)
    assert found.level is WARNING
    assert "should have been renewed" in found.text


def test_one_for_other_names(world: World, files: Path) -> None:
    hold(files, 1, 90, "other.example.com")
    found = examined(world)
    assert (found.level, found.text) == (WARNING, f"is not for {HOST} yet")


def test_one_that_cannot_be_looked_at(world: World, files: Path) -> None:
    """Another user's files cannot be read, and nothing else is concluded from that."""
    (files / ACME_FILE).mkdir()
    assert examined(world).level is FAULT
