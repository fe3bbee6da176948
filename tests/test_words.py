"""The program, its tests and documents use the field's own words: none of those that were retired comes back."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
READ = sorted(
    path
    for pattern in (
        "appliance/**/*.py",
        "appliance/**/*.js",
        "appliance/**/*.css",
        "docs/*.md",
        "*.md",
        "*.toml",
        "tests/**/*.*",
    )
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md" and path != Path(__file__) and path.suffix in (".py", ".js", ".css", ".md", ".toml")
)
RETIRED = re.compile(
    r"in charge of|\b(?:nobody|somebody|whoever|anybody|everybody)\b"
    r"|\b(?:parcels?|couriers?|doorkeepers?|offices?|house|manners|errands?|deeds|janitor|front door|entrance)\b"
    r"|\b(?:gates?|station|old books|the books|trail|for ever)\b|(?<!in.)(?<!single.)\bflights?\b",
    re.IGNORECASE,
)
# The system's user of that name.
ALLOWED = ("chown nobody", "-o nobody", "User=nobody", '"nobody"', "belongs to nobody", "runs as nobody")


def test_no_retired_word() -> None:
    """Each line says who does what, in words that mail operators and Python engineers know."""
    faults = []
    for path in READ:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.replace("_", " ")  # those of a name, too
            for allowed in ALLOWED:
                words = words.replace(allowed, "")
            if RETIRED.search(words):
                faults.append(f"{path.relative_to(ROOT)}, line {number}: {line.strip()}")
    assert faults == []


def public_names(node: ast.stmt) -> Iterator[str]:
    """The public classes and constants that a statement of a module defines; type variables are neither."""
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        yield node.name
    if isinstance(node, ast.Assign | ast.AnnAssign) and "TypeVar(" not in ast.unparse(node):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and name.id.isupper() and not name.id.startswith("_"):
                    yield name.id


def test_a_public_name_means_one_thing() -> None:
    """No two modules define a public class or constant of one name."""
    places = defaultdict(set)
    for path in sorted((ROOT / "appliance").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            for name in public_names(node):
                places[name].add(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
