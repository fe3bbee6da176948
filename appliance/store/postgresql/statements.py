"""Turns the common text of a statement into PostgreSQL's, once: parameters, rows of many values, hints, functions.

Removes hints for SQLite's planner that PostgreSQL does not understand: `CROSS JOIN … ON` (the order of a join)
and `INDEXED BY`. Some of SQLite's functions have other names here. The conditions of `owned` and `any_owner` become
comparisons with the column `owner`, with which the indexes of waiting recipients begin.
"""

import re
from functools import cache

from appliance.store.engine import HAS_ANY_OWNER, IS_OWNED, VALUE, Bulk

ARRAYS = {"": "text[]", "i": "bigint[]", "b": "bytea[]"}  # by the kind of a value in `Bulk`

# Every owner of a recipient that waits, from one to the next by the index that begins with them. As an array it is a
# condition of that index, like one owner; as a join it could be hashed, and everything that waits be read.
_OWNERS = """ARRAY(WITH RECURSIVE owners (owner) AS (
    SELECT min(w.owner) FROM recipients w WHERE w.next_attempt_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(w.owner) FROM recipients w WHERE w.next_attempt_at IS NOT NULL AND w.owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL
) SELECT owner FROM owners WHERE owner IS NOT NULL)"""
# Always true. Plans are made for no account in particular, so where one has nearly all that waits PostgreSQL would as
# soon read everything by the other index; this is a condition that only the index of lanes has.
_BY_LANE = r"\1.domain >= (SELECT '')"

_WORDS = (
    (re.compile(r"\bCROSS JOIN\b"), "JOIN"),
    (re.compile(r"\bINDEXED BY \w+"), ""),
    (re.compile(r"\bjson_group_array\("), "json_agg("),
    (re.compile(r"\bjson_object\("), "json_build_object("),
    (re.compile(r"\bjson_extract\(([\w.]+), '\$\.(\w+)'\)"), r"(CAST(\1 AS json)->>'\2')"),
    (re.compile(r"\bjson_each\((:\w+)\) (\w+)"), r"json_array_elements_text(CAST(\1 AS json)) AS \2 (value)"),
    (re.compile(r"\bgroup_concat\("), "string_agg("),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"\bx''"), "''::bytea"),
    (re.compile(rf"\b{IS_OWNED}\('(\w+)'\)"), r"\1.owner = current_setting('appliance.owner')"),
    (re.compile(rf"\b{HAS_ANY_OWNER}\('(\w+)'\)"), rf"(\1.owner = ANY ({_OWNERS}) AND {_BY_LANE})"),
)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_0-9]+)")


@cache
def statement(text: str) -> str:
    """A statement with named parameters, as psycopg takes it."""
    return _PARAMETER.sub(r"%(\1)s", _plain(text))


@cache
def statement_over_many(many: Bulk) -> str:
    """A statement over rows, which takes one array for each of their columns."""
    names = [f"v{number}" for number in range(len(many.kinds))]
    unused = iter(names)
    row = VALUE.sub(lambda _: next(unused), many.row).strip()
    columns = row[1:-1] if row.startswith("(") else row
    arrays = ", ".join(f"%s::{ARRAYS[kind]}" for kind in many.kinds)
    values = f"SELECT {columns} FROM unnest({arrays}) AS given ({', '.join(names)})"
    return _plain(re.sub(r"VALUES\s*$", "", many.before)) + values + _plain(many.after)


def _plain(text: str) -> str:
    text = text.replace("%", "%%")
    for pattern, instead in _WORDS:
        text = pattern.sub(instead, text)
    return text
