"""In charge of examinations as a whole: other modes, databases that cannot be read, time that runs out."""

import shutil
from pathlib import Path

import apsw
import trio

from appliance.doctor import observe_machine
from appliance.doctor.finding import Level
from appliance.store import FILE_NAME
from tests.doctor.world import ADDRESS, DOMAIN, HOST, REVERSE, World, wrong
from tests.fakes.dns import Trouble

FAULT, WARNING = Level.FAULT, Level.WARNING


def test_a_damaged_database_is_told_and_the_rest_still_looked_at(world: World) -> None:
    """Its pages are spoiled: the domains in it are unknown, everything else is as before."""
    path = world.data_dir / FILE_NAME
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * 4096 * 3 + content[20480:])
    found = trio.run(world.examine)
    assert wrong(found) == {(FAULT, "database", str(path))}
    (told,) = (each for each in found if each.check == "database")
    assert "appliance restore" in told.advice


def test_a_file_that_is_no_database(world: World) -> None:
    """Something else of that name is a fault, too."""
    (world.data_dir / FILE_NAME).write_bytes(b"something else entirely" * 100)
    assert wrong(trio.run(world.examine)) == {(FAULT, "database", str(world.data_dir / FILE_NAME))}


def test_a_database_of_a_later_version(world: World) -> None:
    """It is not opened, and the advice is to run that version."""
    connection = apsw.Connection(str(world.data_dir / FILE_NAME))
    connection.execute("INSERT INTO migrations VALUES (9999, 'later', 0)")
    connection.close()
    found = trio.run(world.examine)
    assert wrong(found) == {(FAULT, "database", str(world.data_dir / FILE_NAME))}
    assert [each.advice for each in found if each.check == "database"] == ["Run the newer appliance."]


def test_before_the_first_account_there_is_no_database(world: World) -> None:
    """Nothing is created by looking."""
    shutil.rmtree(world.data_dir)
    world.runs, world.listens = False, False
    found = trio.run(world.examine)
    assert wrong(found) == {
        (WARNING, "server", "appliance"),
        (WARNING, "database", str(world.data_dir / FILE_NAME)),
    }
    assert not world.data_dir.exists()


def test_looking_changes_nothing(world: World) -> None:
    """The files are byte for byte as they were."""
    before = {each.name: each.read_bytes() for each in world.data_dir.iterdir()}
    trio.run(world.examine)
    after = {each.name: each.read_bytes() for each in world.data_dir.iterdir()}
    assert {name: after[name] for name in before} == before


def test_behind_a_relay_only_the_relay_matters(world: World) -> None:
    """Neither names nor port 25: the relay answers, and SPF names it."""
    world.settings |= {"mode": "relay", "relay_host": "smtp.relay.test"}
    world.zone["smtp.relay.test"] = {"A": ["127.0.0.1"]}
    world.zone[DOMAIN]["TXT"] = ['"v=spf1 a:smtp.relay.test -all"']
    del world.zone[HOST], world.zone[REVERSE], world.zone["mx.big.test"]
    assert wrong(trio.run(world.examine)) == set()


def test_in_the_sandbox_nothing_leaves(world: World) -> None:
    """That is worth a warning on a machine that should send, and the world outside is not asked for."""
    world.settings["mode"] = "sandbox"
    del world.zone["gmail.com"], world.zone[REVERSE]
    assert wrong(trio.run(world.examine)) == {(WARNING, "hostname", HOST)}


def test_a_generated_certificate_is_a_warning(world: World) -> None:
    """Submission works with it, for clients that do not look."""
    world.settings |= {"cert": "", "key": ""}
    assert wrong(trio.run(world.examine)) == {(WARNING, "certificate", "smtp.tls_cert")}


def test_time_that_runs_out_is_told(world: World) -> None:
    """A DNS server that says nothing does not hold up the examination beyond its limit."""
    world.zone[REVERSE] = {"PTR": Trouble.SILENCE}
    world.limit = 1.0
    began = trio.run(_timed, world)
    assert began < 5


async def _timed(world: World) -> float:
    before = trio.current_time()
    found = await world.examine()
    assert (WARNING, "hostname", "-") in wrong(found)
    assert any("could not be found out within 1 s" in each.text for each in found)
    return trio.current_time() - before


def test_the_records_are_ready_to_paste(world: World) -> None:
    """What is missing in DNS is given as it has to be published."""
    missing = {name: world.zone.pop(name) for name in (REVERSE, world.dkim["rsa"], f"_dmarc.{DOMAIN}")}
    found = trio.run(world.examine)
    pasted = {record.name: (record.type, record.value) for each in found for record in each.records}
    assert pasted.keys() == missing.keys()
    assert pasted[REVERSE] == ("PTR", f"{HOST}.")
    for name in (world.dkim["rsa"], f"_dmarc.{DOMAIN}"):
        published = missing[name]["TXT"]
        assert not isinstance(published, Trouble)
        assert pasted[name] == ("TXT", published[0].replace('" "', "").strip('"'))


def test_the_machine_says_whether_its_clock_is_kept() -> None:
    """True, False, or that it cannot be told; asked of this machine."""
    assert observe_machine.synchronised() in (True, False, None)


def test_a_directory_to_be_is_on_some_disk(world: World, tmp_path: Path) -> None:
    """The space is that of the nearest directory there is."""
    assert ADDRESS  # the world is whole
    shutil.rmtree(world.data_dir)
    world.runs, world.listens = False, False
    world.settings["data_dir"] = tmp_path / "a" / "b"
    found = trio.run(world.examine)
    (disk,) = (each for each in found if each.check == "disk")
    assert (disk.level, disk.subject) == (Level.OK, str(tmp_path / "a" / "b"))
