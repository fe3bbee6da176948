"""In charge of the house's floors: imports go down only, and some libraries and SQL live on one floor alone."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "appliance"
MODULES = sorted(ROOT.rglob("*.py"))

# What lies under everything: each may import others of these, and nothing else of ours.
BOTTOM = frozenset(
    {
        "__version__",
        "bell",
        "certificate",
        "certificate_files",
        "clock",
        "config",
        "config_error",
        "config_settings",
        "config_together",
        "config_values",
        "dashboard_model",
        "disk",
        "doorkeeper",
        "errors",
        "events",
        "excerpt",
        "explain",
        "guesses",
        "host_addresses",
        "http_exchange",
        "inbox",
        "joint",
        "keyfile",
        "known_networks",
        "listening",
        "live",
        "log",
        "log_writer",
        "measures",
        "memory",
        "model",
        "networks",
        "notify",
        "outside",
        "own_addresses",
        "passwords",
        "private_file",
        "queue_report",
        "quota",
        "quick_stream",
        "rates",
        "readable",
        "recording",
        "resolver",
        "sealed",
        "self_signed",
        "short_hash",
        "shortage",
        "short_http",
        "shutdown",
        "single",
        "spf",
        "systemd",
        "trail",
        "trust",
        "warmup",
        "webhook_model",
        "webhook_secrets",
        "workers",
    }
)
# Who may import whom, besides the bottom. A new part gets its floor here, on purpose.
ARROWS: dict[str, frozenset[str]] = {
    "__main__": frozenset({"cli"}),
    "cli": frozenset(
        {
            "supervisor",
            "deliver",
            "first_start",
            "provisioning",
            "store",
            "backup",
            "doctor",
            "signing_keys",
            "dns_records",
            "dns_check",
        }
    ),
    "supervisor": frozenset(
        {"accept", "entrance", "web", "submission", "deliver", "webhook", "acme", "metrics", "store", "janitor"}
    ),
    "web": frozenset(
        {
            "accept",
            "credentials",
            "dns_check",
            "dns_records",
            "entrance",
            "message",
            "provisioning",
            "signing_keys",
            "store",
        }
    ),
    "submission": frozenset({"accept", "credentials", "entrance", "message", "store"}),
    "entrance": frozenset({"accept", "credentials", "store"}),
    "credentials": frozenset({"store"}),
    "deliver": frozenset({"message", "store", "signing_keys"}),
    "signing_keys": frozenset({"message", "store"}),
    "dns_records": frozenset({"message"}),
    "dns_check": frozenset({"dns_records", "spf"}),
    "webhook": frozenset({"message", "store"}),
    "backup": frozenset({"store", "signing_keys"}),
    "metrics": frozenset({"store"}),
    "acme": frozenset(),
    "doctor": frozenset({"acme", "store", "signing_keys", "dns_records", "dns_check"}),
    "first_start": frozenset({"store"}),
    "janitor": frozenset({"store"}),
    "provisioning": frozenset({"message"}),
    "accept": frozenset({"message", "store"}),
    "store": frozenset(),
    "message": frozenset(),
    **{name: frozenset() for name in BOTTOM},
}
# Libraries that only one part may know, so that another can take their place.
LIBRARIES: dict[str, frozenset[str]] = {
    "apsw": frozenset({"store"}),
    "quart": frozenset({"web"}),
    "quart_trio": frozenset({"web"}),
    "werkzeug": frozenset({"web"}),
    "hypercorn": frozenset({"web"}),
    "jinja2": frozenset({"web"}),
    "jwt": frozenset({"web"}),
    "h11": frozenset({"web", "http_exchange", "webhook"}),  # HTTP on the wire, served and fetched
    "aiosmtpd": frozenset({"submission"}),
    "trio_asyncio": frozenset({"submission"}),
    "dns": frozenset({"resolver"}),
    "click": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
}
SQL = re.compile(
    r"\b(SELECT\s.*\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX)|PRAGMA\s+\w+)\b",
    re.DOTALL,
)


def part(path: Path) -> str:
    """The part of the house a file belongs to: a package or a module of its own."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Every name a file imports, wherever in it, with its module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def shown(path: Path) -> str:
    """A file's name in the list of tests."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_imports_go_down(path: Path) -> None:
    """A file imports its own part, the bottom, and what the table allows it."""
    if path == ROOT / "__init__.py":
        return
    assert part(path) in ARROWS, "a new part: give it its floor in the table"
    allowed = {part(path)} | BOTTOM | ARROWS[part(path)]
    for name in imported(path):
        package, _, rest = name.partition(".")
        if package == "appliance":
            assert rest.split(".")[0] in allowed, f"{part(path)} → {name}"


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_libraries_stay_on_their_floor(path: Path) -> None:
    """A library that belongs to one part is imported by no other."""
    for name in imported(path):
        library = name.split(".")[0]
        if library in LIBRARIES:
            assert part(path) in LIBRARIES[library], f"{part(path)} → {library}"


@pytest.mark.parametrize("path", [path for path in MODULES if part(path) != "store"], ids=shown)
def test_sql_is_spoken_in_the_store_only(path: Path) -> None:
    """No text outside the store is a statement."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not SQL.search(node.value), f"line {node.lineno}"


def test_the_table_has_no_way_back_up() -> None:
    """What the table allows is a house: nobody can come back to where they started."""
    order = list(TopologicalSorter(ARROWS).static_order())
    assert order.index("store") < order.index("accept") < order.index("web") < order.index("supervisor")


def test_the_table_keeps_the_neighbours_apart() -> None:
    """The four services meet in the store only, and store and message do not know each other."""
    services = {"web", "submission", "deliver", "webhook"}
    for service in services:
        assert not ARROWS[service] & services
    assert not ARROWS["store"]
    assert not ARROWS["message"]
