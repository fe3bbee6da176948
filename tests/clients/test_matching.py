"""How expectations of scenarios are compared: what is named counts, and a difference is told with its place."""

from typing import Any

import pytest

from clients.conformance.matching import differences, differences_of_all, filled


def test_placeholders_become_values() -> None:
    """A string that is only a placeholder takes the value's type; one inside a string its text."""
    known = {"1": {"id": "msg_1", "list": [{"n": 5}]}, "X": {"3": "xxx"}}
    assert filled({"a": ["$1.list", "id $1.id!", "$1.list.0.n", "$X.3", "$1.none", "$5 cheap"]}, known) == {
        "a": [[{"n": 5}], "id msg_1!", 5, "xxx", None, "None cheap"]
    }


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": None}, {}),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "c": 3}]}),
        (3600, 3600.0),
        ({"$matches": "^a+$"}, "aaa"),
        ({"$between": [1, 2]}, 1.5),
        ({"$contains": "b"}, "abc"),
        ({"$one_of": [None, []]}, []),
        ({"$not": {"a": 1}}, {"a": 2}),
        ({"$length": 2}, [1, 2]),
    ],
)
def test_what_matches(expected: Any, found: Any) -> None:
    """Fields that are not named do not matter, and null is a missing one."""
    assert differences(expected, found) == []


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [
        ({"a": 1}, {"a": 2}, "a: expected 1, came 2"),
        ({"a": {"b": 1}}, {"a": None}, "a: expected"),
        ({"a": None}, {"a": ""}, "a: expected None, came ''"),
        ({"a": True}, {"a": 1}, "a: expected True, came 1"),
        ({"a": 0}, {"a": False}, "a: expected 0, came False"),
        ({"a": "1"}, {"a": 1}, "a: expected '1', came 1"),
        ([1], [1, 2], "the value: expected [1], came [1, 2]"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "a[1].b: expected 1, came 2"),
        ({"$matches": "^b"}, "ab", "expected matches"),
        ({"$matches": "1"}, 1, "expected matches"),
        ({"$between": [1, 2]}, 2.1, "expected between"),
        ({"$between": [1, 2]}, None, "expected between"),
        ({"$one_of": [None, []]}, [1], "expected one_of"),
        ({"$not": 1}, 1, "expected not"),
        ({"$length": 2}, "a", "expected length"),
    ],
)
def test_what_differs(expected: Any, found: Any, place: str) -> None:
    """One difference, with where it is and both values."""
    (told,) = differences(expected, found)
    assert place in told


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        (3, "number of calls: expected 3, came 2"),
        ([{"a": 1}], "number of calls: expected 1, came 2"),
        ([{"a": 1}, {"a": 1}], "calls[2].a: expected 1, came 2"),
        ({"each": {"b": 6}}, "calls[2].b: expected 6, came 7"),
        ({"same": ["b"]}, "b of calls: expected the same in all"),
        ({"same": ["c"]}, "c of calls: expected the same in all"),
        ({"distinct": ["d"]}, "d of calls: expected all different"),
    ],
)
def test_rows_that_differ(expected: Any, told: str) -> None:
    """Their number, each of them, and what they have in common; a value that all lack is none in common."""
    found = [{"a": 1, "b": 6, "d": 0}, {"a": 2, "b": 7, "d": 0}]
    assert [each for each in differences_of_all(expected, found, "calls") if told in each]
    assert differences_of_all({"count": 2, "same": ["d"], "distinct": ["a", "b"]}, found, "calls") == []
    with pytest.raises(ValueError, match="unknown"):
        differences_of_all({"cuont": 2}, found, "calls")
