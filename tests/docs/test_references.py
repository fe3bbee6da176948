"""Every file, route and setting that a docstring, a comment or a document names exists."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest

from appliance.config.load import parse
from appliance.dev.routes import InboxRoutes
from appliance.web.openapi import document
from appliance.web.operations import operations_of

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"(?<![\w/.:@*{$~…-])((?:[\w.-]+/)*[\w-]+\.(?:py|sql|md|js|service|toml))\b(?![\w/(*-])(?!\.\w)")
ROUTE = re.compile(r"\b(GET|POST|PUT|DELETE|PATCH) (/[\w/{}.:%-]*)")
KEY = re.compile(r"`\[(\w+)\] (\w+)\b|`(\w+)\.(\w+)`")
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
# Files of an installation, of a user, of other projects, and names that stand for any file.
ELSEWHERE = re.compile(
    r"(?:[\w./-]+/)?config\.toml|(?:new|template)\.toml|NNNN_name\.sql|a/b\.py|test_x\.py|mailgun\.js|"
    r"(?:dns|trio|aiosmtpd|quart|hypercorn|asyncio|h11)/[\w/]+\.py"
)
PYTHON_MODULES = ("http.client", "http.server")
SERVED = ("/openapi.json", "/metrics", "/llms.txt", "/docs", "/dashboard", "/unsubscribe", "/.well-known", "/v1/live")
PYTHON = sorted(path for top in ("appliance", "packaging", "clients/python") for path in (ROOT / top).rglob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "config.example.toml"])
READ = [path for path in (*PYTHON, *DOCUMENTS) if path.name != "CHANGELOG.md" and "reply_rules" not in path.name]
SECTIONS = {
    section.name: {setting.name.rstrip("_") for setting in fields(section.type)}
    for section in fields(parse("", Path("config.toml")))
    if isinstance(section.type, type) and is_dataclass(section.type)
}


@cache
def tracked() -> frozenset[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return frozenset(listed.splitlines())


@cache
def routes() -> tuple[tuple[str, re.Pattern[str]], ...]:
    described = document("https://mail.example.com")["paths"]
    served = [(method.upper(), path) for path, methods in described.items() for method in methods]
    served += [(operation.method, operation.path) for _, operation in operations_of(InboxRoutes)]
    return tuple((method, re.compile(re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(path)))) for method, path in served)


@cache
def prose(path: Path) -> str:
    text = path.read_text()
    if path.suffix != ".py":
        return FENCE.sub("", text)
    if not any(names.search(text) for names in (FILE, ROUTE, KEY)):
        return ""  # reading the tokens of every file takes long
    nodes = (node for node in ast.walk(ast.parse(text)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join([*docstrings, *(token.string for token in tokens if token.type == tokenize.COMMENT)])


def places(path: Path) -> Iterator[Path]:
    yield from (parent for parent in path.parents if parent.is_relative_to(ROOT))
    yield from (ROOT / name for name in ("", "appliance", "tests", "docs", "appliance/web", "appliance/store"))


def missing_files(path: Path) -> list[str]:
    names = [name for name in FILE.findall(prose(path)) if not ELSEWHERE.fullmatch(name)]
    known: set[Path] = set()
    absent = []
    for name in names:
        homes = [place / name for place in (*places(path), *known) if (place / name).is_file()]
        homes += [ROOT / file for file in tracked() if "/" in name and file.endswith(f"/{name}")]
        if homes:
            known.add(homes[0].parent)  # a text may name a file by its path, then others next to it
        else:
            absent.append(name)
    return absent


def missing_routes(path: Path) -> list[str]:
    absent = []
    for method, target in ROUTE.findall(prose(path)):
        plain = target.rstrip("/.:") or "/"
        is_served = plain in ("/", "/v1") or plain.startswith(SERVED)
        if not is_served and not any(method == known and pattern.fullmatch(plain) for known, pattern in routes()):
            absent.append(f"{method} {target}")
    return absent


def missing_settings(path: Path) -> list[str]:
    absent = []
    for bracketed, key, section, name in KEY.findall(prose(path)):
        if bracketed in SECTIONS and key not in SECTIONS[bracketed]:
            absent.append(f"[{bracketed}] {key}")
        is_code = path.suffix == ".py" or name in ("md", "py", "toml") or f"{section}.{name}" in PYTHON_MODULES
        if section in SECTIONS and not is_code and name not in SECTIONS[section]:
            absent.append(f"{section}.{name}")
    return absent


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_prose_exist(path: Path) -> None:
    """Files by their path from the root or from `appliance/`, or next to the text; operations; settings."""
    assert missing_files(path) + missing_routes(path) + missing_settings(path) == []


def test_a_stale_name_is_noticed(tmp_path: Path) -> None:
    text = "see `proofs.py` and docs/api/emails.md; not https://example.com/x.py"
    assert FILE.findall(text) == ["proofs.py", "docs/api/emails.md"]
    assert ROUTE.findall("`GET /v1/emails/{id}/timeline`") == [("GET", "/v1/emails/{id}/timeline")]
    assert KEY.findall("`inbound.bind`, `[inbound] bind`") == [("", "", "inbound", "bind"), ("inbound", "bind", "", "")]
    page = tmp_path / "page.md"
    page.write_text("`appliance/nowhere.py` and `docs/cli.md`, `GET /v1/nothing`, `inbound.nothing`, `[inbound] bind`")
    assert missing_files(page) == ["appliance/nowhere.py"]
    assert (missing_routes(page), missing_settings(page)) == (["GET /v1/nothing"], ["inbound.nothing"])
