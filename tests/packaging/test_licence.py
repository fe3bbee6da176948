"""The licence is in every manifest and every package, and no manifest names an address that is not the project's."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

from appliance import __version__
from appliance.web.openapi import document
from tests.packaging.built_binary import ROOT

LICENCE = (ROOT / "LICENSE").read_text()
HOLDER = "The mail appliance developers"
LIBRARIES = ("python", "node", "go", "php", "ruby")
PLACEHOLDER = "https://mail-appliance.example"
GO_MODULE = "github.com/mail-appliance/mail-appliance-go"


def library(name: str, file: str) -> str:
    return (ROOT / "clients" / name / file).read_text()


def test_the_licence_is_mit() -> None:
    assert LICENCE.startswith(
        f"MIT License\n\nCopyright (c) 2026 {HOLDER}\n\nPermission is hereby granted, free of charge"
    )
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in LICENCE


@pytest.mark.parametrize("name", LIBRARIES)
def test_each_library_has_the_licence_and_a_changelog(name: str) -> None:
    assert library(name, "LICENSE") == LICENCE
    version = (ROOT / "clients" / "VERSION").read_text().strip()
    first = re.search(r"^## (\S+)", library(name, "CHANGELOG.md"), re.MULTILINE)
    assert first
    assert first[1] == version


@pytest.mark.parametrize("path", ["pyproject.toml", "clients/python/pyproject.toml"])
def test_python_manifests(path: str) -> None:
    project = tomllib.loads((ROOT / path).read_text())["project"]
    assert (project["license"], project["license-files"], project["authors"]) == (
        "MIT",
        ["LICENSE"],
        [{"name": HOLDER}],
    )
    assert set(project["urls"]) == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}


def test_the_manifests_of_other_languages() -> None:
    npm, composer = json.loads(library("node", "package.json")), json.loads(library("php", "composer.json"))
    assert (npm["license"], npm["author"]) == ("MIT", HOLDER)
    assert {"homepage", "repository", "bugs"} <= set(npm)
    assert (composer["license"], composer["authors"]) == ("MIT", [{"name": HOLDER}])
    assert {"homepage", "support"} <= set(composer)
    assert "version" not in composer
    gem = library("ruby", "mail_appliance.gemspec")
    assert 'spec.license = "MIT"\n' in gem
    assert all(f'"{name}_uri" => ' in gem for name in ("bug_tracker", "changelog", "documentation", "source_code"))


def test_other_descriptions() -> None:
    debian = (ROOT / "packaging" / "debian" / "copyright").read_text()
    assert f"\nFiles: *\nCopyright: 2026 {HOLDER}\nLicense: MIT\n" in debian
    text = debian.rpartition("License: MIT\n")[2].replace("\n .\n", "\n\n")
    assert re.sub(r"^ ", "", text, flags=re.MULTILINE) == LICENCE.split("\n\n", 2)[2]
    assert 'org.opencontainers.image.licenses="MIT"' in (ROOT / "packaging" / "Containerfile").read_text()
    assert document("http://127.0.0.1")["info"]["license"] == {"name": "MIT License", "identifier": "MIT"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return target


def check_metadata(text: str) -> None:
    about = HeaderParser().parsestr(text)
    assert (about["License-Expression"], about.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert about["Author"] == HOLDER
    assert len(about.get_all("Project-URL") or ()) == 5


def test_the_wheel(built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        about = f"mail_appliance-{__version__}.dist-info"
        assert wheel.read(f"{about}/licenses/LICENSE").decode() == LICENCE
        check_metadata(wheel.read(f"{about}/METADATA").decode())


def test_the_source_archive(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        member = archive.extractfile(f"mail_appliance-{__version__}/PKG-INFO")
        assert member is not None
        check_metadata(member.read().decode())
    assert {"LICENSE", "SECURITY.md", *(f"clients/{name}/LICENSE" for name in LIBRARIES)} <= names


# ---- addresses


def tracked() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if (path := ROOT / name).is_file() and path != Path(__file__) and path.suffix not in (".png", ".gz", ".db"):
            yield name, path.read_text(errors="replace")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_no_address_of_the_project_is_invented() -> None:
    places: dict[str, set[str]] = {}
    for name, text in tracked():
        for address in re.findall(
            r"(?:://|@)([\w.-]*mail-appliance\.[\w.-]*\w)|(github\.com/mail-appliance[\w/-]*\w)", text
        ):
            places.setdefault("".join(address), set()).add(name)
    packages = {f"{GO_MODULE}/mailappliancetest"}
    assert places.keys() - packages == {"mail-appliance.example", "mail-appliance.invalid", GO_MODULE}
    assert "docs/publication.md" in places["mail-appliance.example"]
    assert "docs/publication.md" in places[GO_MODULE]


def test_manifests_have_the_placeholders_of_the_document() -> None:
    named = (ROOT / "docs" / "publication.md").read_text()
    python = [
        *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"].values(),
        *tomllib.loads(library("python", "pyproject.toml"))["project"]["urls"].values(),
    ]
    other = re.findall(r"https://[^\"\s]+", library("node", "package.json") + library("php", "composer.json"))
    for url in (*python, *other):
        assert url.startswith(PLACEHOLDER)
        general = re.sub(r"/clients/\w+/CHANGELOG\.md$", "/clients/…/CHANGELOG.md", url)
        assert f"`{general}`" in named or general.removeprefix(PLACEHOLDER).startswith("/docs/"), url


@pytest.mark.parametrize("name", LIBRARIES)
def test_install_lines_name_no_registry(name: str) -> None:
    lines = re.findall(r"(?:pip|npm|gem) install\b.*|composer require.*|go get .*", library(name, "README.md"))
    for line in lines:
        assert re.search(r"(?:install|require) (?:&&|\.{1,2}/|\"git\+|mail-appliance/mail-appliance:@dev)", line), line
    assert lines or name == "go"
    assert "yet" in library(name, "README.md").partition("## Install")[2].partition("```")[0]


def test_gos_module_path() -> None:
    """It begins with a host and has no part that `go get` refuses; the README says that it is not published."""
    module = library("go", "go.mod").split()[1]
    assert module == GO_MODULE
    assert "**not published yet**" in library("go", "README.md")


# ---- documents


def test_the_readme_and_the_security_policy_name_this_version() -> None:
    readme, security = (ROOT / "README.md").read_text(), (ROOT / "SECURITY.md").read_text()
    minor = ".".join(__version__.split(".")[:2])
    section = readme.partition("## Status, licence and supported versions\n")[2].partition("\n## ")[0]
    for part in (
        f"version {minor}",
        "[MIT](LICENSE)",
        "Python 3.11 to 3.15",
        "(SECURITY.md)",
        "(docs/api-versions.md)",
    ):
        assert part in section
    assert f"the newest release ({minor})" in security


def test_nothing_is_deprecated_as_the_policy_says() -> None:
    assert "Nothing in the API is deprecated today" in (ROOT / "docs" / "api-versions.md").read_text()
    assert list(deprecated(document("http://127.0.0.1"))) == []


def deprecated(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("deprecated") is True:
            yield path
        for name, part in value.items():
            yield from deprecated(part, f"{path}/{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from deprecated(part, f"{path}/{number}")
