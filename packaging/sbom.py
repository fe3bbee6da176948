"""Writes the software bill of materials (CycloneDX 1.5, JSON) of the program that packaging/build-binary has made.

It lists what is in the program and nothing else: packaging/binary/appliance.spec notes the source of every file that
goes in, and each source belongs to a Python package, to Python itself or to a Debian package. A component has its
version, its licence as its own metadata tells it, and one SHA-256: of the lines "HASH  NAME" of its files, sorted by
name, as `sha256sum` writes them. Shared libraries and extension modules are listed as files besides, with the SHA-256
of the file as it was packed. Times come from $SOURCE_DATE_EPOCH, so that the same program has the same list.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
PROJECT = "mail-appliance"
PACKED_AS_FILES = {"BINARY", "EXTENSION"}
HASHED = "SHA-256 of the lines of sha256sum of its packed sources, sorted by name"

# How Python packages and Debian name licences, and how SPDX does.
SPDX = {
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "ISC": "ISC",
    "MIT License": "MIT",
    "MIT": "MIT",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "any-OSI": "any-OSI",
}
DEBIAN = {  # libraries of the system that Python's own modules need
    "libbz2": "bzip2-1.0.6",
    "libcrypt": "LGPL-2.1-or-later",
    "libexpat": "MIT",
    "libffi": "MIT",
    "libgcc": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "liblzma": "0BSD",
    "libmpdec": "BSD-2-Clause",
    "libncurses": "X11",
    "libpython": "PSF-2.0",
    "libreadline": "GPL-3.0-or-later",
    "libsqlite3": "blessing",
    "libssl": "Apache-2.0",
    "libstdc++": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libtinfo": "X11",
    "libuuid": "BSD-3-Clause",
    "zlib1g": "Zlib",
}


@dataclass(slots=True)
class Component:
    """One that is in the program, with the sources of its files by the name they have there."""

    name: str
    version: str
    licence: str  # an SPDX expression, or a text
    purl: str
    is_spdx: bool = True
    sources: dict[str, Path] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)  # as they were packed


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def normal(name: str) -> str:
    """A package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(package: Distribution) -> tuple[str, bool]:
    """A package's licence, and whether it is an SPDX expression."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return str(expression), True
    licences = [
        item.rpartition(" :: ")[2] for item in about.get_all("Classifier") or () if item.startswith("License ::")
    ]
    text = str(about.get("License") or "").strip().partition("\n")[0]
    for item in (*licences, text):
        if item in SPDX:
            return SPDX[item], True
    return next((item for item in (*licences, text) if item), "not in its metadata"), False


class Owners:
    """Which component a source belongs to."""

    def __init__(self) -> None:
        self._by_path: dict[Path, str] = {}
        self._packages: dict[str, Distribution] = {}
        self._debian: dict[Path, tuple[str, str] | None] = {}
        for package in distributions():
            name = normal(package.metadata["Name"])
            self._packages[name] = package
            for file in package.files or ():
                self._by_path[Path(str(file.locate())).resolve()] = name
        self._python = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
        self._prefix = Path(sys.base_prefix).resolve()

    def of(self, source: Path) -> Component:
        """A new component without files; raises KeyError for a source that belongs to none."""
        path = source.resolve()
        if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
            return self._package(PROJECT)
        if (name := self._by_path.get(path)) is not None:
            return self._package(name)
        if any(path.is_relative_to(item) for item in self._python) or path.name.startswith("libpython"):
            version = platform.python_version()
            return Component("python", version, "PSF-2.0", f"pkg:generic/python@{version}")
        if package := self._debian_package(path):
            name, version = package
            licence = next((item for begin, item in DEBIAN.items() if name.startswith(begin)), "")
            architecture = _output("dpkg", "--print-architecture")
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe=':~')}?arch={architecture}"
            licences = licence or f"see /usr/share/doc/{name}/copyright of that package"
            return Component(name, version, licences, purl, is_spdx=bool(licence))
        if path.is_relative_to(self._prefix):  # of a Python that is no Debian package
            version = platform.python_version()
            return Component("python", version, "PSF-2.0", f"pkg:generic/python@{version}")
        raise KeyError(f"{source} belongs to no package")

    def requirements(self, name: str) -> set[str]:
        """The packages that one says it needs."""
        package = self._packages.get(name)
        return {
            normal(re.split(r"[^A-Za-z0-9._-]", item, maxsplit=1)[0]) for item in (package and package.requires) or ()
        }

    def _package(self, name: str) -> Component:
        package = self._packages[name]
        licence, is_spdx = licence_of(package)
        return Component(name, package.version, licence, f"pkg:pypi/{name}@{package.version}", is_spdx=is_spdx)

    def _debian_package(self, path: Path) -> tuple[str, str] | None:
        for spelling in (str(path), str(path).removeprefix("/usr"), f"/usr{path}"):
            if owner := _output("dpkg-query", "--search", spelling):
                name = owner.partition(": ")[0].partition(", ")[0]
                return name.partition(":")[0], _output("dpkg-query", "-W", "-f=${Version}", name)
        return None


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return ""


def components(contents: Iterable[tuple[str, str, str]], packed: Path, owners: Owners) -> dict[str, Component]:
    """All components by their names, from the (name, source, kind) of each file that was packed."""
    made: dict[str, Component] = {}
    for name, source, kind in sorted(set(map(tuple, contents))):
        if source in ("", "-") or not Path(source).is_file():
            continue  # a namespace package
        owner = owners.of(Path(source))
        component = made.setdefault(owner.name, owner)
        component.sources[name] = Path(source)
        if kind in PACKED_AS_FILES:
            component.files[name] = packed / name
    return made


def described(component: Component) -> dict[str, Any]:
    """A component as CycloneDX has it."""
    licence = {"expression": component.licence} if component.is_spdx else {"license": {"name": component.licence}}
    lines = "".join(f"{sha256(source)}  {name}\n" for name, source in sorted(component.sources.items()))
    licences: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
        "licenses": [licence],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(lines.encode()).hexdigest()}],
        "properties": [{"name": "mail-appliance:hash", "value": HASHED}],
    }
    if component.files:
        licences["components"] = [_file(name, path) for name, path in sorted(component.files.items())]
    return licences


def _file(name: str, path: Path) -> dict[str, Any]:
    return {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": sha256(path)}]}


def bill(contents: Iterable[tuple[str, str, str]], packed: Path, binary: Path) -> dict[str, Any]:
    """The whole bill."""
    owners = Owners()
    made = components(contents, packed, owners)
    project = made.pop(PROJECT)
    moment = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    root = described(project) | {"type": "application", "hashes": _file("", binary)["hashes"]}
    root.pop("properties")
    root.pop("components", None)
    listed = [described(item) for _, item in sorted(made.items())]
    names = {item.name: item.purl for item in (*made.values(), project)}
    without = {"python"} & names.keys()  # every package needs it, and none says so
    depends = [
        {"ref": ref, "dependsOn": sorted(names[item] for item in (owners.requirements(name) & names.keys()) | without)}
        for name, ref in sorted(names.items())
        if ref.startswith("pkg:pypi/")
    ]
    whole = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": f"{moment:%Y-%m-%dT%H:%M:%SZ}", "component": root},
        "components": listed,
        "dependencies": depends,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(whole, sort_keys=True))
    return {**whole, "serialNumber": f"urn:uuid:{serial}"}


if __name__ == "__main__":
    contents_file, packed_directory, binary_file, target = map(Path, sys.argv[1:])
    package = bill(json.loads(contents_file.read_text()), packed_directory, binary_file)
    target.write_text(json.dumps(package, indent=2, ensure_ascii=False) + "\n")
