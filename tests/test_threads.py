"""Work in threads: each kind has its own limit, so that one cannot use up the threads of the others."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "appliance"

# Calls that may use Trio's shared limiter, and why.
SHARED = {
    "store/sqlite/engine.py": "joins the writer's thread, once, when the store is closed",
    "first_start.py": "hashes one password, before the first request",
    "doctor/examination.py": "a command of the shell, in its own process",
}


def unlimited(path: Path) -> list[int]:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    threads = [call for call in calls if ast.unparse(call.func).endswith("to_thread.run_sync")]
    return [call.lineno for call in threads if not any(keyword.arg == "limiter" for keyword in call.keywords)]


def test_every_thread_has_a_limit_of_its_own() -> None:
    """`to_thread.run_sync` names a limiter, except where the table above says why not; the table has nothing else."""
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if unlimited(path)}
    assert found == set(SHARED)
