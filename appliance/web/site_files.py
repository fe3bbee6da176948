"""In charge of the files a browser gets beside the pages: read once, named by what they hold, so that it keeps them."""

import hashlib
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class SiteFile:
    """One file, with what its answer says about it."""

    body: bytes
    content_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class SiteFiles:
    """All files, and a name for this very set of them.

    The set's name is part of every file's address. So a browser may keep a file for ever, modules find each other by
    plain relative names, and after an update no page ever runs with half of the old files.
    """

    files: dict[str, SiteFile]
    version: str = field(init=False)

    def __post_init__(self) -> None:
        every = "".join(f"{name} {each.etag}\n" for name, each in sorted(self.files.items()))
        object.__setattr__(self, "version", hashlib.sha256(every.encode()).hexdigest()[:12])


def read_site_files() -> SiteFiles:
    """The files of the package."""
    found: dict[str, SiteFile] = {}
    _read(files("appliance.web") / "static", "", found)
    return SiteFiles(found)


def etag_of(body: bytes) -> str:
    """A name for what a body holds."""
    return hashlib.sha256(body).hexdigest()[:32]


def _read(directory: Traversable, prefix: str, found: dict[str, SiteFile]) -> None:
    for entry in directory.iterdir():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            _read(entry, f"{prefix}{entry.name}/", found)
        elif kind is not None:
            body = entry.read_bytes()
            found[f"{prefix}{entry.name}"] = SiteFile(body, kind, etag_of(body))
