"""Declares settings as dataclass fields: kind of value, default and meaning; or tables that the operator names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from appliance.config import values as v

T = TypeVar("T")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its key, default, kind of value and meaning."""

    section: str
    key: str
    default: object
    kind: v.ValueKind[Any]
    meaning: str


@dataclass(frozen=True, slots=True)
class NamedTables:
    """The tables `[section.key.NAME]` of a section: the kind of NAME, and the class of a table."""

    section: str
    key: str
    name: v.ValueKind[str]
    example: str
    record: type[Any]

    @property
    def place(self) -> str:
        return f"{self.section}.{self.key}"

    def settings(self, name: str) -> Iterator[Setting]:
        return rows(place_of(self.place, name), self.record)


def place_of(before: str, name: str) -> str:
    """Return the TOML path of a key or table; a name is quoted unless it has only letters, digits, `_` and `-`."""
    return f"{before}.{name}" if _BARE_KEY.fullmatch(name) else f'{before}."{name}"'


def key(kind: v.ValueKind[T], default: object, meaning: str) -> T:
    """A field with its default as written in the file; typed as its value, so that mypy compares kind and field."""
    row = {"kind": kind, "default": default, "meaning": meaning}
    # Passwords stay out of the repr.
    return field(default_factory=lambda: kind.read(default), metadata=row, repr=kind not in (v.SECRET, v.DATABASE_URL))


def named(record: type[T], name: v.ValueKind[str], example: str) -> Mapping[str, T]:
    """A field for named tables of one kind, empty by default."""
    return field(default_factory=dict, metadata={"record": record, "name": name, "example": example})


def rows(heading: str, record: type[Any]) -> Iterator[Setting]:
    for entry in fields(record):
        if "kind" in entry.metadata:
            yield Setting(heading, entry.name, **entry.metadata)
