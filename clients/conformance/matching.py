"""Expected values and what came: placeholders filled in, objects compared by the fields that are named. No I/O.

`$NAME`, `$NAME.part` and `$1.id` in a string stand for a value of the run; a string that is only that becomes the value
itself. An expected object names the fields that must match, and may have others; a list has to match item by item. An
object with a single key that begins with `$` is a condition (CONDITIONS).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PLACEHOLDER = re.compile(r"\$((?:[A-Z][A-Z0-9_]*|[0-9]+)(?:\.[A-Za-z0-9_-]+)*)")
SHOWN = 300  # characters of a value in a message


def filled(value: Any, known: Mapping[str, Any]) -> Any:
    """A value with its placeholders replaced."""
    if isinstance(value, Mapping):
        return {name: filled(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, known) for item in value]
    if not isinstance(value, str):
        return value
    whole = PLACEHOLDER.fullmatch(value)
    if whole:
        return look_up(known, whole[1])
    return PLACEHOLDER.sub(lambda actual: str(look_up(known, actual[1])), value)


def look_up(known: Any, path: str) -> Any:
    """The value at a path: names and list positions with dots between. A missing one is None."""
    for name in path.split("."):
        if isinstance(known, list):
            known = known[int(name)] if int(name) < len(known) else None
        else:
            known = known.get(name) if isinstance(known, Mapping) else None
    return known


def shown(value: Any) -> str:
    """A value in a message, not too long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"


def _contains(required: Any, actual: Any) -> bool:
    return isinstance(actual, str | list) and required in actual


CONDITIONS: dict[str, Callable[[Any, Any], bool]] = {
    "$matches": lambda required, actual: isinstance(actual, str) and re.search(required, actual) is not None,
    "$between": lambda required, actual: isinstance(actual, int | float) and required[0] <= actual <= required[1],
    "$contains": _contains,
    "$one_of": lambda required, actual: any(not differences(item, actual) for item in required),
    "$not": lambda required, actual: bool(differences(required, actual)),
    "$length": lambda required, actual: isinstance(actual, str | list) and len(actual) == required,
}


def differences(expected: Any, actual: Any, at: str = "") -> list[str]:
    """In words, where a value is not as expected; empty when it is."""
    place = at or "the value"
    if isinstance(expected, Mapping):
        if len(expected) == 1 and (name := next(iter(expected))) in CONDITIONS:
            if CONDITIONS[name](expected[name], actual):
                return []
            return [f"{place}: expected {name[1:]} {shown(expected[name])}, came {shown(actual)}"]
        if not isinstance(actual, Mapping):
            return [f"{place}: expected {shown(expected)}, came {shown(actual)}"]
        return [
            item
            for name, required in expected.items()
            for item in differences(required, actual.get(name), f"{at}.{name}" if at else name)
        ]
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return [f"{place}: expected {shown(expected)}, came {shown(actual)}"]
        pairs = enumerate(zip(expected, actual, strict=True), 1)
        return [item for number, (required, got) in pairs for item in differences(required, got, f"{at}[{number}]")]
    same = type(expected) is type(actual) or (_is_number(expected) and _is_number(actual))
    return [] if same and expected == actual else [f"{place}: expected {shown(expected)}, came {shown(actual)}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def differences_of_all(expected: Any, actual: Sequence[Any], at: str) -> list[str]:
    """The same for a row of objects.

    Expected is their number, or what each of them must match in turn, or an object with `count`, `list`, `each` (what
    all must match), `same` and `distinct` (paths whose values are all equal, or all different).
    """
    if not isinstance(expected, Mapping):
        expected = {"list": expected} if isinstance(expected, list) else {"count": expected}
    unknown = set(expected) - {"count", "list", "each", "same", "distinct"}
    if unknown:
        raise ValueError(f"{at}: unknown {sorted(unknown)}")
    actual = list(actual)
    problems = []
    if "count" in expected:
        problems += differences(expected["count"], len(actual), f"number of {at}")
    if "list" in expected:
        if len(expected["list"]) != len(actual):
            problems.append(f"number of {at}: expected {len(expected['list'])}, came {len(actual)}")
        for number, (required, got) in enumerate(zip(expected["list"], actual, strict=False), 1):
            problems += differences(required, got, f"{at}[{number}]")
    if "each" in expected:
        for number, got in enumerate(actual, 1):
            problems += differences(expected["each"], got, f"{at}[{number}]")
    for path in expected.get("same", []):
        values = [look_up(item, path) for item in actual]
        if any(value != values[0] or value is None for value in values):
            problems.append(f"{path} of {at}: expected the same in all, came {shown(values)}")
    for path in expected.get("distinct", []):
        values = [look_up(item, path) for item in actual]
        if len({repr(value) for value in values}) != len(values) or None in values:
            problems.append(f"{path} of {at}: expected all different, came {shown(values)}")
    return problems
