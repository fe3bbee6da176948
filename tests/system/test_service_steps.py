"""Single steps: each does what it says, and one that fails says why."""

from pathlib import Path

import pytest

from appliance.system.service import StepFailed, copy, link, own_environment, remove, run, write


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """With its mode, in a directory that is made for it, in the place of an earlier one, and with no draft left."""
    path = tmp_path / "a" / "file"
    for content in ("one", "two"):
        write(path, content, 0o640).do()
        assert path.read_text() == content
        assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_program_is_copied_beside_the_one_that_runs(tmp_path: Path) -> None:
    """The old file is replaced, not written into: a program that runs goes on with the old one."""
    source, path = tmp_path / "new", tmp_path / "bin" / "appliance"
    source.write_bytes(b"new")
    write(path, "old").do()
    with path.open("rb") as running:
        copy(source, path).do()
        assert running.read() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_link_replaces_an_earlier_one(tmp_path: Path) -> None:
    """Installed again, it leads to the new place."""
    for target in (Path("/a"), Path("/b")):
        link(tmp_path / "bin" / "link", target).do()
        assert (tmp_path / "bin" / "link").readlink() == target


def test_removing_takes_all_of_it_and_no_more(tmp_path: Path) -> None:
    """A file, a directory with its content, a link but not what it leads to, and what is gone already."""
    kept = tmp_path / "kept"
    write(kept / "file", "").do()
    write(tmp_path / "tree" / "file", "").do()
    link(tmp_path / "link", kept).do()
    for name in ("tree", "link", "gone"):
        remove(tmp_path / name).do()
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").exists()


def test_a_command_that_fails_is_told() -> None:
    """With its line and the first line of its complaint."""
    run("true").do()
    with pytest.raises(StepFailed, match=r"^`sh -c echo no >&2; exit 3` failed: no$"):
        run("sh", "-c", "echo no >&2; exit 3").do()
    with pytest.raises(StepFailed, match=r"^no-such-command: No such file"):
        run("no-such-command").do()


def test_the_systems_commands_get_the_systems_libraries() -> None:
    """What the single binary has set for itself is taken back for others; otherwise nothing is changed."""
    inside = {"LD_LIBRARY_PATH": "/tmp/_MEI1", "PATH": "/bin"}
    assert own_environment(inside, frozen=True) == {"PATH": "/bin"}
    before = {**inside, "LD_LIBRARY_PATH_ORIG": "/opt/lib"}
    assert own_environment(before, frozen=True) == {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt/lib"}
    assert own_environment(inside, frozen=False) == inside
