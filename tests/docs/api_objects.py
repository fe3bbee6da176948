"""The tables of fields in docs/api.md and docs/api/, generated from the schemas of `/openapi.json`.

A page names the schemas between two comments, next to the routes that use them:

    <!-- objects: ApiKeyRequest, ApiKeyObject+NewApiKeyAnswer -->
    <!-- end of objects -->

Names joined by `+` share one table: each further schema extends the first. `request_id` and `next` have no rows,
because the guide explains them once. A small object that no other refers to is a sentence.
`python -m tests.docs.api_objects` rewrites the tables; test_api.py compares them.
"""

import re
from pathlib import Path
from typing import Any

from appliance.web.openapi import document

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "api.md"
PAGES = (GUIDE, *sorted((ROOT / "docs" / "api").glob("*.md")))
MARKED = re.compile(r"^<!-- objects: ([\w+, ]+) -->\n(.*?)^<!-- end of objects -->$", re.DOTALL | re.MULTILINE)
BY_HAND = {"SendRequest": "emails.md", "Attachment": "emails.md", "BatchRequest": "emails.md"}  # better than generated
EXPLAINED_ONCE = ("request_id", "next")
SMALL = 2  # fields of an object that needs no table

Json = dict[str, Any]


def groups_on(text: str) -> list[list[str]]:
    """The schemas whose fields a page shows: one group per table, its first name the table's."""
    return [group.split("+") for marked in MARKED.finditer(text) for group in marked[1].split(", ")]


def without_tables(text: str) -> str:
    return MARKED.sub("", text)


def with_tables(page: Path, objects: "Objects") -> str:
    tables = _Tables(objects, page)

    def rewrite(marked: re.Match[str]) -> str:
        parts = "\n".join(tables.describe(group.split("+")) for group in marked[1].split(", "))
        return f"<!-- objects: {marked[1]} -->\n\n{parts}\n<!-- end of objects -->"

    return MARKED.sub(rewrite, page.read_text())


class Objects:
    """The schemas, the page of each, and the names of those that others refer to."""

    def __init__(self, described: Json) -> None:
        self.schemas: Json = described["components"]["schemas"]
        self.homes = {name: (path, group) for path in PAGES for group in groups_on(path.read_text()) for name in group}
        properties = str([schema.get("properties") for schema in self.schemas.values()])
        self.linked = {name for name in self.schemas if f"/{name}'" in properties}


class _Tables:
    def __init__(self, objects: Objects, page: Path) -> None:
        self.schemas, self.homes, self.linked = objects.schemas, objects.homes, objects.linked
        self.page = page

    def describe(self, names: list[str]) -> str:
        """One schema, or several that extend the first: a heading and a table, or a sentence."""
        first = self.schemas[names[0]]
        rows = [row for name in names for row in self._rows(name, names[0])]
        if len(rows) <= SMALL and not self.linked.intersection(names):
            fields = "; ".join(f"{field} ({kind}): {text.rstrip('.')}" for field, kind, text in rows)
            return f"**{names[0]}** has {fields}.\n"
        lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        about = " ".join(first["description"].split())
        return f"#### {', '.join(names)}\n\n{about}\n\n| field | type | meaning |\n|---|---|---|\n{lines}"

    def _rows(self, name: str, first: str) -> list[tuple[str, str, str]]:
        own, base = self.schemas[name], self.schemas[first]
        if name == first:
            return [self._row(field, own) for field in own["properties"] if field not in EXPLAINED_ONCE]
        added = [field for field in own["properties"] if field not in base["properties"]]
        for field in set(own["properties"]) & set(base["properties"]):
            if self._row(field, own) != self._row(field, base):
                raise ValueError(f"{name}.{field} differs from {first}.{field}: give {name} its own table")
        rows = [self._row(field, own) for field in added if field not in EXPLAINED_ONCE]
        return [(field, kind, f"{text} Only in {name}.") for field, kind, text in rows]

    def _row(self, field: str, schema: Json) -> tuple[str, str, str]:
        described = schema["properties"][field]
        optional = "" if field in schema.get("required", ()) else ", optional"
        return f"`{field}`", f"{self._type(described)}{optional}", described["description"]

    def _type(self, schema: Json) -> str:
        match schema:
            case {"$ref": reference}:
                return self._link(reference.rpartition("/")[2])
            case {"anyOf": choices}:
                return " or ".join(dict.fromkeys(self._type(choice) for choice in choices))
            case {"enum": _} | {"const": _}:
                return "string"
            case {"type": "array", "items": items}:
                return f"array of {self._type(items)}"
            case {"type": "object", "additionalProperties": values}:
                return f"object of {self._type(values)}"
            case {"format": "date-time"}:
                return "time"
            case _:
                return str(schema["type"])

    def _link(self, name: str) -> str:
        if "properties" not in self.schemas[name]:
            return "string"
        home, group = self.homes[name]
        anchor = "-".join(group).lower()
        return f"[{name}]({'' if home == self.page else home.name}#{anchor})"


if __name__ == "__main__":
    objects = Objects(document("https://mail.example.com"))
    for page in PAGES:
        page.write_text(with_tables(page, objects))
