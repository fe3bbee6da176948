"""However the program is started, a module that cannot be imported is one line on stderr and exit code 1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BINARY = ROOT / "packaging" / "binary" / "start.py"
ENTRIES = {
    "module": ["-m", "appliance"],
    "script": ["-c", "import sys; from appliance.__main__ import start; sys.exit(start())"],  # as pip writes it
    "binary": [str(BINARY)],
}
# Python imports this file by itself when it starts.
SITECUSTOMIZE = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {error}
sys.meta_path.insert(0, Broken())
"""
ERRORS = {
    "error": "ImportError('broken on purpose')",
    "group": "ExceptionGroup('several', [ExceptionGroup('inner', [ImportError('broken on purpose')])])",
}


def serve(entry: str, module: str, error: str, directory: Path) -> subprocess.CompletedProcess[str]:
    (directory / "sitecustomize.py").write_text(SITECUSTOMIZE.format(module=module, error=error))
    return subprocess.run(
        [sys.executable, *ENTRIES[entry], "serve", "--sandbox"],
        env={**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("click", "group"),  # imported by the command line
        ("appliance.telemetry.log", "error"),  # imported before the log works
        ("appliance.backup.unfinished", "group"),  # imported once it works
        ("appliance.supervisor", "error"),  # imported again to explain a failure
        ("trio_asyncio", "error"),  # imported by the supervisor's imports
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(tmp_path: Path, module: str, error: str) -> None:
    run = serve("module", module, ERRORS[error], tmp_path)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1), run.stderr
    assert "ImportError: broken on purpose" in run.stderr
    assert error == "group" or "Traceback" not in run.stderr


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_point_prints_the_line(tmp_path: Path, entry: str) -> None:
    run = serve(entry, "click", ERRORS["error"], tmp_path)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == (
        f"Error: cannot start with Python {sys.version.split()[0]} ({sys.executable}): "
        "ImportError: broken on purpose. Reinstall the appliance.\n"
    )
