"""The program, its tests and documents use the field's own words: none of those that were retired comes back."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

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
ALLOWED = ("chown nobody", "-o nobody", "User=nobody", '"nobody"', "belongs to nobody", "as nobody", "-u nobody")


def test_no_retired_word() -> None:
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
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        yield node.name
    if isinstance(node, ast.Assign | ast.AnnAssign) and "TypeVar(" not in ast.unparse(node):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and name.id.isupper() and not name.id.startswith("_"):
                    yield name.id


def test_a_public_name_means_one_thing() -> None:
    places = defaultdict(set)
    for path in sorted((ROOT / "appliance").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            for name in public_names(node):
                places[name].add(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# ---- phrases that read as translated

PROSE_SUFFIXES = (".py", ".md", ".toml", ".js", ".ts", ".go", ".php", ".rb", ".html", ".css")
WRITTEN = ("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "config.example.toml", "clients", "packaging")
NOT_OURS = ("node_modules", "vendor", "dist", ".venv", "__pycache__", "reply_rules.toml")
TRANSLATED = re.compile(
    "|".join(
        (
            # verbs without an actor
            r"\b(?:is|are|was|were|be|been|being) told\b|\btold (?:as|by|in|of|apart|so)\b",
            r"\b(?:mail|what|which|others?) waits?\b|\bmail that waits\b",
            r"\b(?:is|are|was|were) answered\b|\b(?:has|have|had) come\b|\bhow far \w+ has\b|\bcame twice\b",
            r"\b(?:goes|went|go) on\b|\b(?:gives?|gave|given|giving) way\b|\bput off\b|\bstands? so\b",
            r"\b(?:another|other) (?:run|node|process) has left\b|\bsoon has it\b|\bquestions? come in\b",
            # clauses in place of nouns
            r"\bwhat (?:was|were|is|has been) (?:refused|deferred|queued|left|asked|said|sent|found)\b",
            r"\bwhat (?:was|were|is|has been) (?:wanted|given|taken)\b",
            r"\bwhat (?:was|were|is|has been) (?:written|accepted|kept|stored|read|due|known|new|pending|charged)\b",
            r"\bwhat (?:became|becomes|has become|will become) of\b|\bwhat stands behind\b|\bby what\b",
            r"\b(?:all|nothing) of it\b|\bnothing of (?:them|the|this)\b",
            r"\bthose of (?:the|its|their|an?|it|them|this)\b",
            r"\ball else\b|\bhas none\b|\bthere (?:is|was|were|are) none\b|\bif it is much\b|\bgive it once for each\b",
            # words that are not the usual ones
            r"(?<!line )\bby itself\b(?!,)|\bonce more\b|\banew\b|\bbeside\b|\bfor want of\b|\bis no good\b",
            r"\bshort of (?:nothing|something|descriptors)\b|\botherwise-refused\b|\bonly watches\b|\bthe same, for\b",
            r"\bby a rule of this installation\b|\bcosts? senders nothing\b|\bhelp of nothing\b|\bbounces that come\b",
        )
    ),
    re.IGNORECASE,
)
DIALECT_NAME = re.compile(r"\b(?:found|each|wanted|told|given|alike)\b(?= *(?:=(?!=)|,[^)\]]*=(?!=)| in\b))")
GENERATED = re.compile(r"^<!-- objects: .*?^<!-- end of objects -->$", re.DOTALL | re.MULTILINE)  # from appliance/web
OUTPUT = re.compile(r"^```(?:json|text)$.*?^```$", re.DOTALL | re.MULTILINE)  # of the program, which is checked itself


def prose_and_code_of(path: Path) -> tuple[str, str]:
    text, code = path.read_text(), ""
    if path.suffix == ".py":
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        text = "\n".join(token.string for token in tokens if token.type in kinds)
        code = " ".join(token.string for token in tokens if token.type not in kinds)
    elif path.suffix == ".md":
        text = OUTPUT.sub("", GENERATED.sub("", text))
    return " ".join(re.sub(r"(?m)^\s*(?:#+|//+|/\*+|\*|--)\s", " ", text).split()), code


def written_files() -> Iterator[Path]:
    for top in (*WRITTEN, "appliance"):
        place = ROOT / top
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            skipped = set(NOT_OURS).intersection(path.relative_to(ROOT).parts)
            is_prose = path.suffix in PROSE_SUFFIXES or (top == "packaging" and path.suffix in ("", ".sh"))
            if is_prose and path.is_file() and not skipped:
                yield path


def test_no_phrase_reads_as_translated() -> None:
    hits = []
    for path in written_files():
        prose, code = prose_and_code_of(path)
        hits += [(str(path), prose[max(0, hit.start() - 50) : hit.end() + 50]) for hit in TRANSLATED.finditer(prose)]
        hits += [(str(path), name) for name in DIALECT_NAME.findall(code)]
    assert hits == []


@pytest.mark.parametrize(
    "sentence",
    ["mail waits: this machine is short", "a certificate has come", "`q` is no good", "What became of it", "all else"],
)
def test_a_translated_phrase_is_found(sentence: str) -> None:
    assert TRANSLATED.search(sentence)
