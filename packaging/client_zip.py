"""Packs the Go or the PHP client library as a zip file, with fixed times and modes.

Go's has the form of a module proxy: every name begins with MODULE@vVERSION/. Composer's begins with a folder and omits
what composer.json excludes from archives.
"""

import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

FILE_MODE = 0o100644


def go_files(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.rglob("*") if path.is_file())


def php_files(folder: Path) -> Iterator[Path]:
    excluded = [
        folder / name.strip("/") for name in json.loads((folder / "composer.json").read_text())["archive"]["exclude"]
    ]
    yield from (path for path in go_files(folder) if not any(path.is_relative_to(item) for item in excluded))


def pack(folder: Path, version: str, target: Path) -> None:
    """Write the zip file of a library's folder."""
    if (module := folder / "go.mod").exists():
        prefix, files = f"{module.read_text().split()[1]}@v{version}", go_files(folder)
    else:
        prefix, files = target.stem, php_files(folder)
    moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")))[:6]  # 1980, the first that zip knows
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(f"{prefix}/{path.relative_to(folder)}", moment)
            entry.external_attr = FILE_MODE << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
