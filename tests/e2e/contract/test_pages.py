"""Every list comes in pages: each entry is on exactly one, in the order of the whole list."""

from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import owner

# The list, what its pages go on with, the field that its entries are in the order of, and what makes three of them.
LISTS: dict[str, tuple[str, str, list[tuple[str, str, Any]]]] = {
    "templates": ("after", "alias", [("PUT", f"/v1/templates/t{number}", {"text": "t"}) for number in (2, 1, 3)]),
    "suppressions": (
        "after",
        "address",
        [("POST", "/v1/suppressions", {"address": f"{letter}@example.net"}) for letter in "bac"],
    ),
    "domains": ("after", "name", [("POST", "/v1/domains", {"domain": f"{letter}.example"}) for letter in "ba"]),
    "api-keys": ("before", "id", [("POST", "/v1/api-keys", {})]),
    "smtp-credentials": ("before", "created_at", [("POST", "/v1/smtp-credentials", {})] * 3),
    "emails": ("before", "id", []),
    "credits": ("before", "id", []),
}


@pytest.mark.parametrize("name", LISTS)
def test_every_list_comes_in_pages(new_account: NewAccount, name: str) -> None:
    """Sorted by name, or newest first; `limit` and the `next` of the page before lead through it, the last has none."""
    caller = new_account()
    customer = owner(caller)
    cursor, field, making = LISTS[name]
    for method, path, body in making:
        assert customer.request(method, path, json=body).is_success
    if name in ("emails", "credits"):
        for _ in range(3):
            caller.send()
    key = {"credits": "entries"}.get(name, name.replace("-", "_"))
    whole = customer.get(f"/v1/{name}").json()[key]
    assert len(whole) >= 3
    assert [each[field] for each in whole] == sorted((each[field] for each in whole), reverse=cursor == "before")
    found: list[Any] = []
    query: dict[str, Any] = {"limit": 2}
    while cursor not in query or query[cursor] is not None:
        page = customer.get(f"/v1/{name}", params=query).json()
        assert set(page) >= {key, "next", "request_id"}
        assert 1 <= len(page[key]) <= 2
        found += page[key]
        query[cursor] = page["next"]
    assert [each.get("username", each[field]) for each in found] == [
        each.get("username", each[field]) for each in whole
    ]
