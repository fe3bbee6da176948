"""`appliance suppressions` and `domain remove`, `account role`: each change is in the database, and told."""

import csv
from functools import partial
from pathlib import Path

import pytest

from appliance.model.accounts import Role
from appliance.store import Store
from tests.cli.shell import Shell, user_of


def addresses(shell: Shell) -> dict[str, tuple[str, str]]:
    found = shell.json("suppressions", "list", "acme")["suppressions"]
    return {each["address"]: (each["origin"], each["reason"]) for each in found}


def test_an_address_is_added_listed_and_removed(acme: Shell) -> None:
    """In its key form; a second time changes nothing, and one that is not there is refused."""
    acme.json("suppressions", "add", "acme", "Ada@Example.NET", "--reason", "asked us to stop")
    acme.json("suppressions", "add", "acme", "ada@example.net")
    assert addresses(acme) == {"ada@example.net": ("manual", "asked us to stop")}
    assert "asked us to stop" in acme.text("suppressions", "list", "acme")
    acme.json("suppressions", "remove", "acme", "ADA@example.net")
    assert addresses(acme) == {}
    assert "is not suppressed" in acme.refused("suppressions", "remove", "acme", "ada@example.net")
    assert "Add one:" in acme.text("suppressions", "list", "acme")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("ada@x.example\nbob@x.example\n\n", {"ada@x.example": "imported", "bob@x.example": "imported"}),
        ("address,reason\nada@x.example,gone\n", {"ada@x.example": "gone"}),
        ('\ufeffEmail\r\n"ada@x.example","a, b"\r\n', {"ada@x.example": "a, b"}),
        ("ADA@x.example\nada@X.example", {"ada@x.example": "imported"}),
        ("", {}),
    ],
)
def test_a_file_is_imported(acme: Shell, content: str, expected: dict[str, str]) -> None:
    """Plain lines or CSV, with or without a heading; a second time nothing is new."""
    file = acme.config.parent / "list.csv"
    file.write_text(content)
    told = acme.json("suppressions", "import", "acme", str(file))
    repeated = content.lower().count("@x.example") - len(expected)
    assert told == {"imported": len(expected), "listed_already": 0, "repeated": repeated, "skipped": []}
    assert addresses(acme) == {address: ("import", reason) for address, reason in expected.items()}
    again = acme.json("suppressions", "import", "acme", "-", stdin=content)
    assert again == {"imported": 0, "listed_already": len(expected), "repeated": repeated, "skipped": []}


@pytest.mark.parametrize("line", ["no address at all", "a@b@c", "x" * 40_000])
def test_a_line_that_cannot_be_read_is_skipped(acme: Shell, line: str) -> None:
    content = f"ada@x.example\n{line}\nbob@x.example\n"
    said = acme.text("suppressions", "import", "acme", "-", stdin=content)
    assert "1 lines were skipped" in said
    assert "line 2: " in said
    assert list(addresses(acme)) == ["ada@x.example", "bob@x.example"]
    again = acme.json("suppressions", "import", "acme", "-", stdin=content)
    assert [each["line"] for each in again["skipped"]] == [2]


def test_many_are_imported_and_exported(acme: Shell, tmp_path: Path) -> None:
    acme.json("suppressions", "import", "acme", "-", stdin="".join(f"user{n}@x.example\n" for n in range(2_500)))
    exported = acme.text("suppressions", "export", "acme")
    assert exported.splitlines()[0] == "address,reason,origin,created_at"
    acme.create("other")
    assert acme.json("suppressions", "import", "other", "-", stdin=exported)["imported"] == 2_500


def test_no_exported_cell_is_a_formula(acme: Shell) -> None:
    listed = {"=1+1@x.example": "+call", "-a@x.example": "@sum", "+b@x.example": "=2", "ada@x.example": "550 =no"}
    lines = "".join(f"{address},{reason}\n" for address, reason in listed.items())
    acme.json("suppressions", "import", "acme", "-", stdin=lines)
    exported = acme.text("suppressions", "export", "acme")
    rows = list(csv.DictReader(exported.splitlines()))
    assert len(rows) == len(listed)
    assert not [cell for row in rows for cell in row.values() if cell.lstrip()[:1] in tuple("=+-@")]
    acme.create("other")
    assert acme.json("suppressions", "import", "other", "-", stdin=exported)["imported"] == len(listed)
    found = acme.json("suppressions", "list", "other")["suppressions"]
    assert {each["address"]: each["reason"] for each in found} == listed


def test_a_domain_is_removed_and_comes_back(acme: Shell) -> None:
    acme.json("domain", "add", "acme", "acme.example")
    before = acme.json("domain", "records", "acme", "acme.example")
    assert acme.json("domain", "remove", "acme", "ACME.example") == {"name": "acme.example", "removed": True}
    assert acme.json("domain", "list", "acme")["domains"] == []
    assert "has no domain acme.example" in acme.refused("domain", "remove", "acme", "acme.example")
    acme.json("domain", "add", "acme", "acme.example")
    assert acme.json("domain", "records", "acme", "acme.example") == before


def test_a_role_is_changed_and_ends_the_sessions(acme: Shell) -> None:
    before = user_of(acme, "acme")
    acme.json("account", "role", "acme", "admin")
    changed = user_of(acme, "acme")
    assert (changed.role, changed.token_epoch) == (Role.ADMIN, before.token_epoch + 1)
    acme.json("account", "role", "acme", "admin")
    assert user_of(acme, "acme").token_epoch == changed.token_epoch
    assert "only administrator" in acme.refused("account", "role", "acme", "customer")
    acme.create("operator")
    acme.json("account", "role", "operator", "admin")
    assert "is now customer" in acme.text("account", "role", "acme", "customer")
    acme.misused("account", "role", "acme", "king")


async def unsubscribed(account: str, mail_list: str, store: Store) -> bool:
    return await store.unsubscriptions.add(account, mail_list, "ada@example.net")


def test_who_has_unsubscribed_is_let_in_again(acme: Shell) -> None:
    """By the tag or template that it was; the list shows it until then."""
    account = acme.json("account", "show", "acme")["id"]
    for mail_list in ("tag:news", "template:weekly"):
        acme.stored(partial(unsubscribed, account, mail_list))
    assert "not suppressed" in acme.refused("suppressions", "remove", "ada@example.net")
    acme.json("suppressions", "remove", "ada@example.net", "--tag", "news")
    assert "has not unsubscribed" in acme.refused("suppressions", "remove", "ada@example.net", "--tag", "news")
    acme.json("suppressions", "remove", "acme", "ada@example.net", "--template", "weekly")
    assert acme.json("suppressions", "list")["suppressions"] == []
    acme.misused("suppressions", "remove", "ada@example.net", "--tag", "a", "--template", "b")
