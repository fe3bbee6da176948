"""The software bill of materials: valid CycloneDX, and of what is in the program and nothing else."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import click
import pytest

from appliance import __version__
from tests.packaging.built_binary import ROOT, made

LIBRARIES = {"trio", "h11", "click", "cryptography", "psycopg", "apsw"}


def bill(directory: Path) -> dict[str, Any]:
    packed = directory / "packed"
    packed.mkdir(exist_ok=True)
    (packed / "apsw.so").write_bytes(b"stripped")
    (directory / "binary").write_bytes(b"program")
    contents = [
        ("appliance", str(ROOT / "appliance/__init__.py"), "PYMODULE"),
        ("click.core", str(Path(click.__file__).with_name("core.py")), "PYMODULE"),
        ("json", json.__file__, "PYMODULE"),
        ("apsw.so", str(next(Path(apsw.__file__).parent.glob("*.so"))), "EXTENSION"),
        ("nothing", "-", "PYMODULE"),
    ]
    (directory / "contents.json").write_text(json.dumps(contents))
    paths = [str(directory / name) for name in ("contents.json", "packed", "binary", "bill.json")]
    command = [sys.executable, str(ROOT / "packaging/sbom.py"), *paths]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
    subprocess.run(command, env=environment, check=True, timeout=120)
    found: dict[str, Any] = json.loads((directory / "bill.json").read_text())
    return found


def check_valid(text: str) -> None:
    schema = pytest.importorskip("cyclonedx.schema").SchemaVersion.V1_5  # of requirements-test.txt
    fault = pytest.importorskip("cyclonedx.validation.json").JsonStrictValidator(schema).validate_str(text)
    assert fault is None, str(fault)


def test_it_lists_what_was_packed(tmp_path: Path) -> None:
    found = bill(tmp_path)
    check_valid((tmp_path / "bill.json").read_text())
    parts = {each["name"]: each for each in found["components"]}
    assert set(parts) == {"apsw", "click", "python"}
    assert parts["click"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert parts["click"]["purl"] == f"pkg:pypi/click@{parts['click']['version']}"
    core = hashlib.sha256(Path(click.__file__).with_name("core.py").read_bytes()).hexdigest()
    lines = hashlib.sha256(f"{core}  click.core\n".encode()).hexdigest()
    assert parts["click"]["hashes"] == [{"alg": "SHA-256", "content": lines}]
    (extension,) = parts["apsw"]["components"]
    assert extension["hashes"][0]["content"] == hashlib.sha256(b"stripped").hexdigest()
    program = found["metadata"]["component"]
    assert (program["name"], program["version"]) == ("mail-appliance", __version__)
    assert program["licenses"] == [{"expression": "MIT"}]
    assert program["hashes"][0]["content"] == hashlib.sha256(b"program").hexdigest()
    depends = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert parts["click"]["purl"] in depends[program["purl"]]


def test_the_same_program_has_the_same_bill(tmp_path: Path) -> None:
    first = bill(tmp_path)
    assert bill(tmp_path) == first
    assert first["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"


def test_the_schema_is_asked() -> None:
    with pytest.raises(AssertionError):
        check_valid('{"bomFormat": "CycloneDX", "specVersion": "1.5", "components": [{"type": "sandwich"}]}')


def test_the_bill_of_the_built_program() -> None:
    file = made(ROOT / "dist/appliance.cdx.json", "sh packaging/build-all")
    check_valid(file.read_text())
    found = json.loads(file.read_text())
    parts = {each["name"]: each for each in found["components"]}
    assert parts.keys() >= LIBRARIES | {"python"}
    assert not parts.keys() & {"pytest", "pip", "pyinstaller", "mypy"}
    assert all(each["version"] and each["licenses"] and each["hashes"] for each in parts.values())
    untold = [name for name, each in parts.items() if "license" in each["licenses"][0]]
    assert untold == [], "name their licences in packaging/sbom.py"
    binary = hashlib.sha256((ROOT / "dist/appliance").read_bytes()).hexdigest()
    assert found["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": binary}]
    packed = ROOT / "dist/appliance.d/_internal"
    listed = {file["name"]: file for each in parts.values() for file in each.get("components", ())}
    libraries = {str(path.relative_to(packed)) for path in packed.rglob("*") if re.search(r"\.so(\.|$)", path.name)}
    assert libraries <= listed.keys() | {name for name in libraries if (packed / name).is_symlink()}
    for name, each in listed.items():
        assert hashlib.sha256((packed / name).read_bytes()).hexdigest() == each["hashes"][0]["content"]


def test_the_sums_are_right() -> None:
    """`sha256sum -c` finds each file as it was built: binary, package and bill."""
    sums = made(ROOT / "dist/SHA256SUMS", "sh packaging/build-all")
    subprocess.run(["sha256sum", "--check", "--quiet", sums.name], cwd=sums.parent, check=True, timeout=60)
    names = {line.split()[1] for line in sums.read_text().splitlines()}
    assert {"appliance", "appliance.cdx.json"} < names
    assert any(name.endswith(".deb") for name in names)
