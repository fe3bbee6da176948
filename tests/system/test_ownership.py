"""Root's commands load modules after they became another user: also from a directory that only root may enter."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.running_appliance import add_account

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.sqlite_only,
]

ROOT = Path(__file__).parents[2]
OWNER = pwd.getpwuid(65534)
# PyInstaller's reader, which opens the program again for each module.
AS_BINARY = """
import sys, types
from pathlib import Path
from appliance.system import data_directory as ownership
archive = types.SimpleNamespace(_filename=sys.argv[1])
sys.modules["pyimod02_importers"] = types.SimpleNamespace(pyz_archive=archive)
ownership.become_owner(Path(sys.argv[2]))
print(open(archive._filename).read())
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory of mode 0700 with the program; next to it an installation of another user."""
    with TemporaryDirectory(dir="/tmp") as made:
        directory = Path(made)
        directory.chmod(0o755)
        add_account(directory / "data", "demo")
        (directory / "config.toml").write_text('[server]\ndata_dir = "data"\n')
        for path in (directory / "data", *(directory / "data").iterdir()):
            os.chown(path, OWNER.pw_uid, OWNER.pw_gid)
        (directory / "home").mkdir(mode=0o700)
        yield directory / "home"


@pytest.mark.parametrize("words", [("upgrade", "--check"), ("account", "list")])
def test_a_program_that_the_owner_cannot_read_is_one_line(home: Path, words: tuple[str, ...]) -> None:
    """It says where the program is, who cannot read it, and where to put it."""
    shutil.copytree(ROOT / "appliance", home / "appliance")
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "appliance", *words, "--config", str(home.parent / "config.toml")],
        env={**os.environ, "PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    owner = f"{OWNER.pw_name}, the owner of {home.parent}/data"
    reason = f"{home}/appliance cannot be read by {owner}: move it to a directory such as /usr/local/bin"
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"Error: {reason}\n")


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_the_single_binary_is_read_by_its_descriptor(home: Path, mode: int) -> None:
    """If the file itself is for all users, it works in any directory."""
    program = home / "appliance"
    program.write_text("modules")
    program.chmod(mode)
    ran = subprocess.run(
        [sys.executable, "-c", AS_BINARY, str(program), str(home.parent / "data")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if mode == 0o755:
        assert (ran.returncode, ran.stdout) == (0, "modules\n")
    else:
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
