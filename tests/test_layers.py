"""Imports go down only, by one ordered list of layers; libraries, SQL and the shared threads belong to few modules."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent / "appliance"
MODULES = sorted(ROOT.rglob("*.py"))

# From the top down: a part imports only parts of the rows below its own; parts of one row do not know each other. A
# module that needs more than the rest of its package is a part of its own, with its package's name before it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("dev", "supervisor"),
    ("backup", "doctor"),
    ("inbound",),
    ("retention", "submission", "web"),
    ("attention",),
    ("intake",),
    ("acme", "deliver", "first_start", "telemetry.prometheus", "webhook"),
    ("feedback",),
    ("keys",),
    ("dns", "store", "tls"),
    ("message", "webhook.formats"),
    ("report",),
    ("net",),
    ("concurrency", "system"),
    ("shutdown",),
    ("telemetry",),
    ("model",),
    ("config",),
    ("errors", "environment", "times", "__version__"),
)
LAYER = {name: number for number, row in enumerate(LAYERS) for name in row}
# Libraries that only one part may know, so that another can take their place.
LIBRARIES: dict[str, frozenset[str]] = {
    "apsw": frozenset({"store"}),
    "quart": frozenset({"dev", "web"}),
    "quart_trio": frozenset({"web"}),
    "werkzeug": frozenset({"web"}),
    "hypercorn": frozenset({"web"}),
    "jinja2": frozenset({"web"}),
    "jwt": frozenset({"web"}),
    "h11": frozenset({"web", "net", "webhook"}),  # HTTP on the wire, served and fetched
    "aiosmtpd": frozenset({"submission"}),
    "trio_asyncio": frozenset({"submission"}),
    "dns": frozenset({"dns"}),
    "click": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
}
SQL = re.compile(
    r"\b(SELECT\s.*\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX)|PRAGMA\s+\w+)\b",
    re.DOTALL,
)


def part(path: Path) -> str:
    return part_of(".".join(path.relative_to(ROOT).with_suffix("").parts))


def part_of(module: str) -> str:
    names = module.split(".")
    return ".".join(names[:2]) if ".".join(names[:2]) in LAYER else names[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_imports_go_down() -> None:
    for path in MODULES:
        if path == ROOT / "__init__.py":
            continue
        mine = part(path)
        assert mine in LAYER, f"{mine} is a new part: give it its layer"
        for name in imported(path):
            package, _, rest = name.partition(".")
            if package == "appliance" and (other := part_of(rest)) != mine:
                assert LAYER[other] > LAYER[mine], f"{path}: {mine} → {name}"


def test_libraries_belong_to_one_package() -> None:
    for path in MODULES:
        for name in imported(path):
            library = name.split(".")[0]
            if library in LIBRARIES:
                assert part(path) in LIBRARIES[library], f"{path}: {part(path)} → {library}"


def test_sql_is_in_the_store_only() -> None:
    for path in MODULES:
        if part(path) == "store":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not SQL.search(node.value), f"{path}, line {node.lineno}"


def test_engines_are_imported_by_the_store_only() -> None:
    """Other packages use the names that `appliance.store` exports."""
    engines = ("appliance.store.sqlite", "appliance.store.postgresql")
    for path in MODULES:
        if part(path) != "store":
            assert [name for name in imported(path) if name.startswith(engines)] == [], path


def test_every_layer_is_a_part() -> None:
    assert set(LAYER) - {"__version__"} == {part(path) for path in MODULES} - {"__init__"}


def test_no_circle_within_a_package() -> None:
    names = {".".join(("appliance", *path.relative_to(ROOT).with_suffix("").parts)): path for path in MODULES}
    arrows: dict[str, set[str]] = {}
    for name, path in names.items():
        found = {known for item in imported(path) for known in (item, item.rpartition(".")[0]) if known in names}
        arrows[name] = found - {name}
    TopologicalSorter(arrows).prepare()  # raises CycleError


# Calls that may use Trio's shared limiter of threads, and why.
SHARED_LIMITER = {
    "store/sqlite/engine.py": "joins the writer's thread, once, when the store is closed",
    "first_start.py": "hashes one password, before the first request",
    "doctor/examination.py": "a command of the shell, in its own process",
}


def has_unlimited_thread(path: Path) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "run_sync"
        and ast.unparse(node.func).endswith("to_thread.run_sync")
        and all(keyword.arg != "limiter" for keyword in node.keywords)
        for node in ast.walk(tree(path))
    )


def test_every_thread_has_a_limit_of_its_own() -> None:
    """Each kind of work in threads names its limiter, so that none uses up the threads of the others."""
    assert {str(path.relative_to(ROOT)) for path in MODULES if has_unlimited_thread(path)} == set(SHARED_LIMITER)
