"""`appliance user …`: each change of an account's people is in the database, in the audit log, and told."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from appliance.model.accounts import PasswordLink
from appliance.store import Store
from tests.cli.shell import Shell, fields, user_of
from tests.docs.test_cli import documented

ANN = "ann@acme.example"


def token_of(answer: Any) -> str:
    link = urlsplit(answer["link"])
    assert (link.path, link.query) == ("/dashboard/invitation", "")
    given: dict[str, list[str]] = parse_qs(link.fragment)
    assert given["email"] == [answer["email"]]
    return given["token"][0]


def opened(shell: Shell, answer: Any) -> PasswordLink | None:
    link: PasswordLink | None = shell.stored(lambda store: store.people.open_link(token_of(answer)))
    return link


def join(shell: Shell, email: str, role: str = "developer", account: str = "acme") -> None:
    token = token_of(shell.json("user", "invite", account, email, "--role", role))
    assert shell.stored(lambda store: store.people.use_link(token, "a hash")) is not None


def roles(shell: Shell, account: str = "acme") -> dict[str, str]:
    return {each["email"]: each["role"] for each in shell.json("user", "list", account)["users"]}


def lines(shell: Shell) -> list[tuple[str, str, str, dict[str, str]]]:
    """What was written down of people in the account, the oldest first."""
    found = shell.json("audit", "acme")["audit"]
    told = [(each["actor_kind"], each["action"], each["object"], each["details"]) for each in found]
    return [each for each in reversed(told) if not each[1].startswith("account.")]


def test_people_and_invitations_are_listed(acme: Shell) -> None:
    """In JSON apart, as in the API; in one table for people. Other accounts' are not among them."""
    acme.create("zoo", "--admin")
    join(acme, "bob@acme.example", "viewer")
    made = acme.json("user", "invite", "acme", ANN, "--role", "developer")
    answer = acme.json("user", "list", "acme")
    assert fields(answer) == fields(documented("user list"))
    assert roles(acme) == {"acme@example.org": "owner", "bob@acme.example": "viewer"}
    assert answer["invitations"] == [{key: value for key, value in made.items() if key not in ("link", "mailed")}]
    head, owner, viewer, invited = acme.text("user", "list", "acme").splitlines()
    assert head.split()[:3] == ["EMAIL", "ROLE", "ADMIN"]
    assert owner.split()[:4] == ["acme@example.org", "owner", "no", "no"]
    assert viewer.split()[:2] == ["bob@acme.example", "viewer"]
    assert invited.split()[:4] == [ANN, "developer", "-", "-"]
    assert invited.endswith(made["expires_at"][:16].replace("T", " "))
    (admin,) = acme.json("user", "list", "zoo")["users"]
    assert admin["admin"] is True
    assert acme.json("user", "list", "zoo")["invitations"] == []


def test_an_invitation_is_a_link_that_is_good_once(acme: Shell) -> None:
    """It leads to the server's own address, ends when another one is made, and lets the person in with the role."""
    acme.config.write_text(acme.config.read_text() + '[http]\nbase_url = "https://mail.example.com"\n')
    first = acme.json("user", "invite", ANN, "--role", "viewer")
    second = acme.json("user", "invite", "acme", ANN.upper(), "--role", "developer")
    assert fields(second) == fields(documented("user add"))
    assert second["link"].startswith("https://mail.example.com/dashboard/invitation#token=")
    assert second["email"] == ANN
    assert opened(acme, first) is None
    assert opened(acme, second) is not None
    acme.stored(lambda store: store.people.use_link(token_of(second), "a hash"))
    assert opened(acme, second) is None
    assert roles(acme)[ANN] == "developer"
    assert "logs in to this account already" in acme.refused("user", "invite", ANN, "--role", "viewer")
    assert "\nrole        viewer\n" in acme.text("user", "invite", "bob@acme.example", "--role", "viewer")


def test_an_address_of_another_account_is_named_and_freed(acme: Shell) -> None:
    acme.create("zoo")
    join(acme, ANN, account="zoo")
    assert "logs in to account zoo" in acme.refused("user", "invite", "acme", ANN, "--role", "viewer")
    acme.json("user", "remove", "zoo", ANN)
    join(acme, ANN)
    assert roles(acme)[ANN] == "developer"


def test_an_invitation_needs_an_address_and_a_role(acme: Shell) -> None:
    assert "email: " in acme.refused("user", "invite", "acme", "--role", "viewer")
    assert "ROLE" in acme.misused("user", "invite", ANN)
    assert "'owner', 'developer', 'viewer'" in acme.misused("user", "invite", ANN, "--role", "admin")


def test_a_role_is_changed(acme: Shell) -> None:
    """With the account or, for the only one, without; what the tokens so far allowed ends, and an owner stays."""
    join(acme, ANN)
    before = acme.stored(lambda store: store.accounts.user_by_email(ANN)).token_epoch
    answer = acme.json("user", "role", "acme", "Ann@acme.example", "viewer")
    assert fields(answer) == fields(documented("user role"))
    assert (answer["email"], answer["role"]) == (ANN, "viewer")
    assert acme.stored(lambda store: store.accounts.user_by_email(ANN)).token_epoch == before + 1
    assert "needs an owner" in acme.refused("user", "role", "acme@example.org", "developer")
    assert acme.text("user", "role", ANN, "owner") == f"{ANN} is now owner in account acme.\n"
    acme.json("user", "role", "acme@example.org", "developer")
    assert roles(acme) == {"acme@example.org": "developer", ANN: "owner"}
    for odd in ((ANN,), (ANN, "admin"), ("acme", ANN, "owner", "viewer")):
        acme.misused("user", "role", *odd)


def test_a_person_is_removed(acme: Shell) -> None:
    join(acme, ANN)
    user = acme.stored(lambda store: store.accounts.user_by_email(ANN))
    answer = acme.json("user", "remove", ANN)
    assert fields(answer) == fields(documented("user remove"))
    assert (answer["id"], answer["email"]) == (user.id, ANN)
    assert acme.stored(lambda store: store.accounts.user_by_email(ANN)) is None
    assert "needs an owner" in acme.refused("user", "remove", "acme", "acme@example.org")
    join(acme, ANN)
    assert acme.text("user", "remove", "acme", ANN) == f"Removed {ANN} from account acme.\n"
    assert roles(acme) == {"acme@example.org": "owner"}


def test_an_invitation_is_withdrawn(acme: Shell) -> None:
    made = acme.json("user", "invite", ANN, "--role", "viewer")
    assert acme.json("user", "remove", "Ann@acme.example")["id"] == made["id"]
    assert opened(acme, made) is None
    acme.json("user", "invite", ANN, "--role", "viewer")
    assert acme.text("user", "remove", ANN) == f"Withdrew the invitation of {ANN}.\n"
    assert acme.json("user", "list")["invitations"] == []


@pytest.mark.parametrize(
    "words", [("role", "acme", "zoo@example.org", "viewer"), ("remove", "acme", "zoo@example.org")]
)
def test_people_of_another_account_are_not_changed(acme: Shell, words: tuple[str, ...]) -> None:
    acme.create("zoo")
    told = "Error: zoo@example.org is not a user of account acme: see appliance user list --account acme\n"
    assert acme.refused("user", *words) == told
    assert roles(acme, "zoo") == {"zoo@example.org": "owner"}


def test_a_password_is_reset_by_a_link(acme: Shell) -> None:
    """For a person of whichever account; the password so far is good until the link is used."""
    acme.create("zoo")
    before = user_of(acme, "zoo")
    answer = acme.json("user", "reset-password", "Zoo@example.org")
    assert fields(answer) == fields(documented("user reset-password"))
    link = opened(acme, answer)
    assert link is not None
    assert link.user_id == before.id
    assert user_of(acme, "zoo") == before
    acme.stored(lambda store: store.people.use_link(token_of(answer), "another hash"))
    assert user_of(acme, "zoo").password_hash == "another hash"
    assert acme.refused("user", "reset-password", ANN) == f"Error: no user has the address {ANN}\n"


def test_a_second_factor_is_turned_off(acme: Shell) -> None:
    address, user = "acme@example.org", user_of(acme, "acme")

    async def turn_on(store: Store) -> None:
        await store.second_factors.begin(user.id, b"sealed")
        await store.second_factors.confirm(user.id, b"sealed", 7, ["a", "b"])

    for _ in range(2):
        assert "does not use two-factor authentication" in acme.refused("user", "reset-totp", address)
        acme.stored(turn_on)
        assert acme.json("user", "list")["users"][0]["totp"] is True
        answer = acme.json("user", "reset-totp", address)
        assert fields(answer) == fields(documented("user reset-totp"))
        assert user_of(acme, "acme").has_totp is False
    acme.stored(turn_on)
    assert acme.text("user", "reset-totp", address) == f"{address} now logs in without two-factor authentication.\n"
    assert [each[1:3] for each in lines(acme)] == [("totp.disabled", address)] * 3


def test_changes_of_people_are_in_the_audit_log(acme: Shell) -> None:
    """In that of the account, with the role; lists and refusals are not, and no link is."""
    made = acme.json("user", "invite", "Ann@acme.example", "--role", "viewer")
    acme.stored(lambda store: store.people.use_link(token_of(made), "a hash"))
    acme.json("user", "role", ANN, "developer")
    reset = acme.json("user", "reset-password", ANN)
    acme.refused("user", "role", "acme@example.org", "viewer")
    acme.refused("user", "remove", "acme@example.org")
    acme.refused("user", "reset-totp", ANN)
    acme.json("user", "list")
    acme.json("user", "remove", ANN)
    acme.json("user", "invite", ANN, "--role", "owner")
    acme.json("user", "remove", ANN)
    assert lines(acme) == [
        ("operator", "user.invited", "Ann@acme.example", {"role": "viewer"}),
        ("operator", "user.role_changed", ANN, {"role": "developer"}),
        ("operator", "password.reset", ANN, {}),
        ("operator", "user.removed", ANN, {}),
        ("operator", "user.invited", ANN, {"role": "owner"}),
        ("operator", "user.removed", ANN, {}),
    ]
    log = str(acme.json("audit"))
    assert token_of(made) not in log
    assert token_of(reset) not in log
