"""What users install."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import mail_appliance
from mail_appliance import errors

HERE = Path(__file__).parents[1]


def python(program: str) -> str:
    """What a program prints that has the library and no other package."""
    path = f"import sys; sys.path.insert(0, {str(HERE / 'src')!r})\n"
    command = [sys.executable, "-I", "-S", "-c", path + program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_version_is_that_of_all_clients() -> None:
    """It is in the package, and in the User-Agent."""
    assert mail_appliance.__version__ == (HERE.parent / "VERSION").read_text().strip()


def test_every_public_name_is_there() -> None:
    """All errors are among them, and the package says that it has types."""
    assert set(mail_appliance.__all__) <= set(dir(mail_appliance))
    assert {kind.__name__ for kind in errors.BY_CODE.values()} < set(mail_appliance.__all__)
    assert (HERE / "src" / "mail_appliance" / "py.typed").is_file()


def test_threads_need_the_standard_library_alone() -> None:
    """Importing the package and using a client needs no other one, nor does the fake for event loops."""
    program = """
from mail_appliance import AsyncClient, Client
from mail_appliance.testing import AsyncFakeClient, FakeClient
FakeClient().send(from_="a@example.com", to="b@example.net", subject="s", text="t")
AsyncFakeClient()
Client("http://127.0.0.1:9", token="t").close()
print(sorted(name for name in sys.modules if name in ("anyio", "httptools", "django", "flask")))
"""
    assert python(program) == "[]\n"


def test_a_missing_extra_is_named() -> None:
    """With the command that installs it."""
    program = """
from mail_appliance import AsyncClient, ConfigurationError
try:
    AsyncClient("http://127.0.0.1:9", token="t")
except ConfigurationError as error:
    print(error)
"""
    advised = re.search(r"pip install '(.+)' '(.+)'", python(program))
    assert advised
    manifest = tomllib.loads((HERE / "pyproject.toml").read_text())
    assert list(advised.groups()) == manifest["project"]["optional-dependencies"]["async"]
