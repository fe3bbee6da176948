"""The first example of each library in `docs/clients.md` works on the real program, with a key that may only send."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients.conformance.server import Server, started
from tests.clients.test_documents import DOCUMENT, HEADINGS, first_block
from tests.programs import require

CLIENTS = Path(__file__).parents[2] / "clients"
GO_MODULE = "github.com/mail-appliance/mail-appliance-go"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("appliance")) as running:
        yield running


def python(code: str, folder: Path) -> list[str]:
    """The command that runs a Python example, as the other functions do for their languages."""
    (folder / "example.py").write_text(f"import sys; sys.path.insert(0, {str(CLIENTS / 'python/src')!r})\n{code}")
    return [sys.executable, "example.py"]


def node(code: str, folder: Path) -> list[str]:
    """The library is compiled without a look at its types, for which its own tests have the packages."""
    package = folder / "node_modules" / "mail-appliance"
    package.mkdir(parents=True)
    shutil.copy(CLIENTS / "node" / "package.json", package)
    sources = CLIENTS / "node" / "src"
    options = {
        "noCheck": True,
        "types": [],
        "declaration": False,
        "rootDir": str(sources),
        "outDir": str(package / "dist"),
    }
    settings = {"extends": str(CLIENTS / "node/tsconfig.json"), "compilerOptions": options, "include": [str(sources)]}
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    subprocess.run([require("typescript"), "-p", str(folder)], check=True)
    (folder / "example.mjs").write_text(code)
    return [require("node"), "example.mjs"]


def go(code: str, folder: Path) -> list[str]:
    (folder / "main.go").write_text(code)
    (folder / "go.mod").write_text(
        f"module example\n\ngo 1.19\n\nrequire {GO_MODULE} v1.2.0\n\nreplace {GO_MODULE} => {CLIENTS / 'go'}\n"
    )
    return [require("go"), "run", "."]


def php(code: str, folder: Path) -> list[str]:
    """The classes are found by the loader of the library's own tests."""
    require("php-curl")
    (folder / "example.php").write_text(f"<?php require {str(CLIENTS / 'php/tests/autoload.php')!r};\n{code}")
    return [require("php"), "example.php"]


def ruby(code: str, folder: Path) -> list[str]:
    (folder / "example.rb").write_text(code)
    return [require("ruby"), f"-I{CLIENTS / 'ruby/lib'}", "example.rb"]


PREPARE: dict[str, Callable[[str, Path], list[str]]] = {
    "python": python,
    "node": node,
    "go": go,
    "php": php,
    "ruby": ruby,
}


def run(server: Server, code: str, folder: Path, language: str) -> str:
    code = code.replace("orders@example.com", f"orders@{server.known['DOMAIN']}").replace(
        "order-17", f"order-{language}"
    )
    command = PREPARE[language](code, folder)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", str(folder)),
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "MAIL_APPLIANCE_URL": server.url,
        "MAIL_APPLIANCE_TOKEN": server.known["SEND_KEY"],
    }
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.parametrize("language", HEADINGS)
def test_the_first_send_works_with_a_key_that_may_only_send(server: Server, tmp_path: Path, language: str) -> None:
    """It prints the id of the message that the appliance has stored, and that it is queued."""
    block = first_block(DOCUMENT, f"### {HEADINGS[language]}").partition("\n")[2].removesuffix("```")
    printed = re.fullmatch(r"(msg_\w+): queued\n", run(server, block, tmp_path, language))
    assert printed
    assert printed[1] in {message["id"] for message in server.stored("orders@", with_content=False)}


@pytest.mark.parametrize("heading", ["Attachments", "Errors", "Trio and asyncio"])
def test_other_examples_in_python(server: Server, tmp_path: Path, heading: str) -> None:
    for name in ("invoice.pdf", "logo.png", "report.csv"):
        (tmp_path / name).write_text(name)
    readme = (CLIENTS / "python" / "README.md").read_text()
    block = first_block(readme, f"## {heading}").partition("\n")[2].removesuffix("```")
    before = len(server.stored("orders@", with_content=False))
    run(server, block, tmp_path, "python")
    assert len(server.stored("orders@", with_content=False)) == before + 1


def test_gos_module_can_be_required_by_its_former_name(tmp_path: Path) -> None:
    """A program that has a `replace` directive for `mailappliance` still builds: Go does not compare the names."""
    (tmp_path / "go.mod").write_text(
        "module old\n\ngo 1.19\n\nrequire mailappliance v1.0.0\n\n" + f"replace mailappliance => {CLIENTS / 'go'}\n"
    )
    program = 'package main\n\nimport "mailappliance"\n\nfunc main() { println(mailappliance.Version) }\n'
    (tmp_path / "main.go").write_text(program)
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
    ran = subprocess.run([require("go"), "run", "."], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (ran.returncode, ran.stderr.decode().strip()) == (0, (CLIENTS / "VERSION").read_text().strip())
