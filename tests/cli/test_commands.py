"""The command line: every verb, its two forms of output, its exit codes and its refusals."""

import os
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from click.testing import CliRunner

from appliance import __version__
from appliance.cli import leaves, main
from appliance.keys.secrets import password_matches
from appliance.model.accounts import LedgerEntry, Role
from appliance.store import Store
from tests.cli.shell import ROOT, Shell, fields, user_of
from tests.docs.test_cli import documented
from tests.fork_client import fork
from tests.terminal import shown_on_terminal

# Commands whose JSON is held to the document elsewhere: DNS, mail, a backup, a server or another root is needed.
OF_OTHERS = """
attention, account create, account remove, backup, completion, config check, config path, config show, dev,
doctor,
domain verify, explain, feedback list, feedback show, health, help,
install, mcp, message list, request list, node drain, node list, pause, ramp auto,
ramp reset, ramp set, ramp show, restore,
resume, send-test, serve, setup, store copy, template import, template list, template pull, template push,
template remove, template show, status, uninstall, upgrade, user add, user list, user remove, user reset-password,
user reset-totp, user role, verify, webhook ping, webhook remove, webhook replay, webhook set, webhook show
"""
ELSEWHERE = {name.strip() for name in OF_OTHERS.split(",")}
ACCOUNT_FIELDS = {"id", "name", "email", "credits", "daily_cap", "suspended", "created_at", "stored_bytes"}


# ---- accounts


def test_an_account_is_created_unlimited_unless_told_otherwise(shell: Shell) -> None:
    """`account create` answers with the new account: no --credits means no limit, and null in JSON."""
    made = shell.create("acme")
    assert set(made) == ACCOUNT_FIELDS
    assert (made["name"], made["email"], made["credits"], made["suspended"]) == (
        "acme",
        "acme@example.org",
        None,
        False,
    )
    assert made["created_at"].endswith("Z")
    assert made["id"].startswith("acc_")
    assert shell.create("other", "--credits", "unlimited")["credits"] is None
    assert shell.create("third", "--credits", "12")["credits"] == 12


def test_a_created_account_is_told_in_words_with_the_next_step(shell: Shell) -> None:
    words = shell.creating()
    assert (
        shell.text(*words, stdin="long enough")
        == "Created account acme. Next: appliance domain add --account acme DOMAIN\n"
    )


@pytest.mark.parametrize(
    ("given", "password"),
    [
        ("correct horse\n", "correct horse"),
        ("correct horse\r\n", "correct horse"),
        ("correct horse", "correct horse"),
        ("two ends\n\n", "two ends\n"),
        (" spaces stay \n", " spaces stay "),
        ("Straßenbahn\n", "Straßenbahn"),
        ("密码密码密码密码\n", "密码密码密码密码"),
        ("x" * 1024 + "\n", "x" * 1024),
    ],
)
def test_the_password_is_stdin_without_one_line_end(shell: Shell, given: str, password: str) -> None:
    shell.create("acme", password=given)
    assert password_matches(password, user_of(shell, "acme").password_hash)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("", "empty"),
        ("\n", "empty"),
        ("pw\n", "at least 8 characters"),
        ("1234567\n", "at least 8 characters"),
        ("x" * 1025, "1024 bytes"),
        ("ß" * 513, "1024 bytes"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_an_impossible_password_is_refused(shell: Shell, given: str | bytes, reason: str) -> None:
    """An empty, short, overlong or undecodable password is refused in one line, and no database is made for it."""
    words = shell.creating()
    assert reason in shell.refused(*words, stdin=given)
    assert not shell.data_dir.exists()


def test_a_password_comes_only_through_stdin(shell: Shell) -> None:
    """Without --password-stdin `account create` is wrong usage."""
    assert "--password-stdin" in shell.misused(
        "account", "create", "acme", "--email", "a@example.org", stdin="long enough"
    )


def test_the_admin_flag_makes_an_admin(shell: Shell) -> None:
    """--admin gives the user the admin role; without it, none."""
    shell.create("boss", "--admin")
    shell.create("acme")
    assert user_of(shell, "boss").role is Role.ADMIN
    assert user_of(shell, "acme").role is Role.CUSTOMER


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "0", "x" * 64])
def test_a_sane_name_is_taken(shell: Shell, name: str) -> None:
    """Letters, digits, dots, underscores and hyphens make a name, up to 64 of them."""
    words = shell.creating(name)
    assert shell.json(*words, stdin="long enough")["name"] == name


@pytest.mark.parametrize("name", [".a", "_a", "a b", "a/b", "ä", "x" * 65, "a@b", "a%"])
def test_an_odd_name_is_refused(shell: Shell, name: str) -> None:
    words = shell.creating(name)
    assert "letters, digits" in shell.refused(*words, stdin="long enough")


@pytest.mark.parametrize("email", ["", "user", "a@b", "A <a@example.org>", "a@example.org,b@example.org", "a@x\ny.org"])
def test_an_odd_email_is_refused(shell: Shell, email: str) -> None:
    assert "email: " in shell.refused(*shell.creating(email=email), stdin="long enough")


def test_a_name_or_email_in_use_is_refused(acme: Shell) -> None:
    assert "already exists" in acme.refused(*acme.creating(), stdin="long enough")
    assert "already logs in" in acme.refused(*acme.creating("new", "ACME@example.org"), stdin="long enough")


@pytest.mark.parametrize("balance", ["-1", "1.5", "many", "", "10000000000000000", "٣"])
def test_an_odd_number_of_credits_is_wrong_usage(shell: Shell, balance: str) -> None:
    words = ("account", "create", "acme", "--email", "a@example.org", "--password-stdin", "--credits", balance)
    assert "unlimited" in shell.misused(*words, stdin="long enough")


def test_accounts_are_listed_and_shown(acme: Shell) -> None:
    """`account list` and `account show` tell the same, in JSON and in words."""
    acme.create("zoo")
    listed = acme.json("account", "list")["accounts"]
    assert [row["name"] for row in listed] == ["acme", "zoo"]
    assert acme.json("account", "show", "acme") == listed[0]
    assert set(listed[0]) == ACCOUNT_FIELDS
    head, first, second = acme.text("account", "list").splitlines()
    assert head.split()[:3] == ["NAME", "EMAIL", "CREDITS"]
    assert first.split()[:4] == ["acme", "acme@example.org", "100", "off"]
    assert second.split()[:3] == ["zoo", "zoo@example.org", "unlimited"]
    shown = acme.text("account", "show", "zoo")
    assert "credits       unlimited\n" in shown
    assert "suspended     no\n" in shown


def test_an_account_is_suspended_and_resumed(acme: Shell) -> None:
    for _ in range(2):
        assert acme.json("account", "suspend", "acme")["suspended"] is True
    assert acme.json("account", "show", "acme")["suspended"] is True
    for _ in range(2):
        assert acme.json("account", "resume", "acme")["suspended"] is False
    assert acme.text("account", "suspend", "acme") == "Suspended account acme.\n"
    assert acme.text("account", "resume", "acme") == "Resumed account acme.\n"


def test_credits_are_added_and_taken(acme: Shell) -> None:
    """`account credit` takes N, +N and -N, the last without any ceremony."""
    assert acme.json("account", "credit", "acme", "5")["credits"] == 105
    assert acme.json("account", "credit", "acme", "+20")["credits"] == 125
    assert acme.json("account", "credit", "acme", "-25")["credits"] == 100
    assert acme.text("account", "credit", "acme", "-100") == "Account acme now has 0 credits.\n"


def test_a_balance_never_falls_below_zero(acme: Shell) -> None:
    assert "-101 is not possible with a balance of 100" in acme.refused("account", "credit", "acme", "-101")
    assert "is not possible" in acme.refused("account", "credit", "acme", "1000000000000000")
    assert acme.json("account", "show", "acme")["credits"] == 100


def test_unlimited_is_left_only_by_setting_a_balance(acme: Shell) -> None:
    """An unlimited account has no balance to add to; --set starts counting again, and the ledger adds up."""
    assert acme.json("account", "credit", "acme", "unlimited")["credits"] is None
    assert acme.text("account", "credit", "acme", "unlimited") == "Account acme now has unlimited credits.\n"
    assert "unlimited" in acme.refused("account", "credit", "acme", "5")
    assert acme.json("account", "credit", "acme", "7", "--set")["credits"] == 7
    assert acme.json("account", "credit", "acme", "--set", "3")["credits"] == 3
    assert "between 0 and" in acme.refused("account", "credit", "acme", "-3", "--set")

    async def of_acme(store: Store) -> list[LedgerEntry]:
        return await store.accounts.ledger((await store.accounts.named("acme")).id)

    ledger = acme.stored(of_acme)
    assert [(entry.amount, entry.balance) for entry in reversed(ledger)] == [(100, 100), (-100, 0), (7, 7), (-4, 3)]


@pytest.mark.parametrize("amount", ["--", "-", "five", "1e3", "+-5", "--jsno", "99999999999999999999", "-x"])
def test_an_odd_amount_is_wrong_usage(acme: Shell, amount: str) -> None:
    acme.misused("account", "credit", "acme", amount)


def test_the_warm_up_cap_is_set_and_lifted(acme: Shell) -> None:
    assert acme.json("account", "cap", "acme", "200")["daily_cap"] == 200
    assert acme.text("account", "cap", "acme", "5") == "Account acme now has a cap of 5 recipients a day.\n"
    assert acme.json("account", "cap", "acme", "off")["daily_cap"] is None
    assert acme.text("account", "cap", "acme", "off") == "Account acme now has no daily cap.\n"
    for odd in ("0", "-5", "none", "1.5"):
        acme.misused("account", "cap", "acme", odd)


def test_a_new_password_replaces_the_old_and_its_tokens(acme: Shell) -> None:
    """`account password` changes the hash and revokes every token of the user."""
    before = user_of(acme, "acme")
    assert acme.json("account", "password", "acme", "--password-stdin", stdin="another one\n")["name"] == "acme"
    after = user_of(acme, "acme")
    assert password_matches("another one", after.password_hash)
    assert after.token_epoch == before.token_epoch + 1
    words = ("account", "password", "acme", "--password-stdin")
    assert acme.text(*words, stdin="eight ch") == "Changed the password of acme@example.org.\n"
    assert "empty" in acme.refused(*words)
    assert "at least 8 characters" in acme.refused(*words, stdin="seven c")
    assert password_matches("eight ch", user_of(acme, "acme").password_hash)
    acme.misused("account", "password", "acme")


# ---- domains


def test_a_domain_is_added_usable_and_listed(acme: Shell) -> None:
    added = acme.json("domain", "add", "acme", "Acme.Example.")
    assert (added["name"], added["usable"]) == ("acme.example", True)
    assert acme.json("domain", "add", "acme", "acme.example") == added
    (listed,) = acme.json("domain", "list", "acme")["domains"]
    assert {name: listed[name] for name in added} == added
    words = (
        "Account acme may now send from acme.example. Next, show the DNS records to publish: appliance domain records"
    )
    assert acme.text("domain", "add", "acme", "acme.example") == f"{words} --account acme acme.example\n"
    assert acme.text("domain", "list", "acme").splitlines()[1].split()[:2] == ["acme.example", "yes"]


def test_an_international_domain_becomes_a_labels(acme: Shell) -> None:
    assert acme.json("domain", "add", "acme", "Bücher.Example")["name"] == "xn--bcher-kva.example"


@pytest.mark.parametrize(
    "domain", ["localhost", "a@b.example", "<a@b.example>", "x <a@b.example>", "1.2.3.4", "a-.example", "a..example"]
)
def test_an_odd_domain_is_refused(acme: Shell, domain: str) -> None:
    assert "not a domain name" in acme.refused("domain", "add", "acme", domain)
    assert acme.json("domain", "list", "acme") == {"domains": []}


# ---- credentials and keys


def test_a_credential_is_created_listed_and_revoked(acme: Shell) -> None:
    """An SMTP credential's password is shown once, and the list tells when it was revoked."""
    made = acme.json("credential", "create", "acme")
    assert set(made) == {"username", "password"}
    (row,) = acme.json("credential", "list", "acme")["credentials"]
    assert (row["username"], row["revoked_at"]) == (made["username"], None)
    assert made["password"] not in acme.text("credential", "list", "acme")
    assert acme.stored(lambda store: store.access.caller_by_credential(made["username"])) is not None
    revoked = acme.json("credential", "revoke", "acme", made["username"])
    assert revoked == {"username": made["username"], "revoked": True}
    assert acme.stored(lambda store: store.access.caller_by_credential(made["username"])) is None
    assert acme.json("credential", "list", "acme")["credentials"][0]["revoked_at"] is not None
    assert "Revoked" in acme.text("credential", "revoke", "acme", made["username"])


def test_a_credential_of_another_account_is_not_revoked(acme: Shell) -> None:
    acme.create("zoo")
    username = acme.json("credential", "create", "acme")["username"]
    assert "no SMTP credential" in acme.refused("credential", "revoke", "zoo", username)
    assert "username  smtp_" in acme.text("credential", "create", "zoo")


@pytest.mark.parametrize(
    ("options", "prefix", "scope", "test"),
    [
        ((), "ma_live_", "send", False),
        (("--scope", "full"), "ma_live_", "full", False),
        (("--test",), "ma_test_", "send", True),
        (("--test", "--scope", "full"), "ma_test_", "full", True),
        (("--scope", "read"), "ma_live_", "read", False),
        (("--scope", "send,read"), "ma_live_", "full", False),
        (("--scope", "manage"), "ma_live_", "manage", False),
    ],
)
def test_a_key_is_created_as_asked(acme: Shell, options: tuple[str, ...], prefix: str, scope: str, test: bool) -> None:
    """--test and --scope decide what the key may do; the default is to send for real, and not to read."""
    made = acme.json("key", "create", "acme", *options)
    assert set(made) == {"id", "key"}
    assert made["key"].startswith(prefix)
    (row,) = acme.json("key", "list", "acme")["keys"]
    assert (row["id"], row["account"], row["scope"], row["test"]) == (made["id"], "acme", scope, test)
    assert made["key"].endswith(row["hint"])
    assert row["revoked_at"] is None


def test_keys_are_listed_for_one_account_or_all(acme: Shell) -> None:
    """`key list` without a name lists every account's keys, and never a key itself."""
    acme.create("zoo")
    keys = [acme.json("key", "create", name) for name in ("acme", "zoo")]
    assert [row["account"] for row in acme.json("key", "list")["keys"]] == ["acme", "zoo"]
    assert [row["id"] for row in acme.json("key", "list", "zoo")["keys"]] == [keys[1]["id"]]
    assert not any(made["key"] in acme.text("key", "list") for made in keys)


def test_a_key_is_revoked_with_or_without_its_account(acme: Shell) -> None:
    """`key revoke ID` and `key revoke NAME ID` both work, but not with another account's name."""
    acme.create("zoo")
    first, second = (acme.json("key", "create", "acme") for _ in range(2))
    assert acme.json("key", "revoke", first["id"]) == {"id": first["id"], "revoked": True}
    assert "No API key has this id" in acme.refused("key", "revoke", "zoo", second["id"])
    assert acme.stored(lambda store: store.access.caller_by_key(second["key"])) is not None
    assert acme.text("key", "revoke", "acme", second["id"]) == f"Revoked API key {second['id']}.\n"
    assert acme.stored(lambda store: store.access.caller_by_key(second["key"])) is None
    assert "No API key has this id" in acme.refused("key", "revoke", "key_nothing")
    acme.misused("key", "revoke")
    acme.misused("key", "revoke", "acme", "a", "b")
    acme.misused("key", "create", "acme", "--scope", "everything")
    acme.misused("key", "create", "acme", "--scope", "manage", "--test")


def test_a_key_has_limits(acme: Shell) -> None:
    """--domain, --expires and --name are told by the list; a time that has passed and an odd domain are refused."""
    acme.json(
        "key", "create", "acme", "--scope", "manage", "--domain", "Example.com", "--expires", "90d", "--name", "ci"
    )
    (row,) = acme.json("key", "list", "acme")["keys"]
    assert (row["domain"], row["name"], row["scope"]) == ("example.com", "ci", "manage")
    days = datetime.fromisoformat(row["expires_at"]) - datetime.fromisoformat(row["created_at"])
    assert timedelta(days=89) < days < timedelta(days=91)
    acme.misused("key", "create", "acme", "--expires", "2020-01-01")
    acme.misused("key", "create", "acme", "--expires", "soon")
    assert "domain" in acme.refused("key", "create", "acme", "--domain", "no domain")


def test_what_commands_change_is_in_the_audit_log(acme: Shell) -> None:
    """With the system's user; what only reads leaves no line, nor does what was refused, and a key is not told."""
    made = acme.json("key", "create", "acme")
    acme.json("key", "list")
    acme.refused("key", "revoke", "key_none")
    acme.json("key", "revoke", made["id"])
    acme.json("account", "suspend", "acme")
    lines = acme.json("audit", "acme")["audit"]
    assert [(each["action"], each["object"]) for each in lines[:3]] == [
        ("account.suspended", "acme"),
        ("api_key.revoked", made["id"]),
        ("api_key.created", "acme"),
    ]
    assert {(each["actor_kind"], each["address"]) for each in lines} == {("operator", "cli")}
    assert len(acme.json("audit", "--action", "api_key")["audit"]) == 2
    assert made["key"] not in acme.text("audit")


def test_a_key_is_rolled(acme: Shell) -> None:
    """The new secret works, and the former one for as long as --overlap says."""
    acme.create("zoo")
    made = acme.json("key", "create", "acme")
    assert "No API key has this id" in acme.refused("key", "roll", "zoo", made["id"])
    rolled = acme.json("key", "roll", "acme", made["id"], "--overlap", "2h")
    assert rolled["id"] == made["id"]
    assert acme.stored(lambda store: store.access.caller_by_key(made["key"])) is not None
    assert acme.stored(lambda store: store.access.caller_by_key(rolled["key"])) is not None
    again = acme.json("key", "roll", made["id"], "--overlap", "0")
    assert again["previous_expires_at"] is None
    assert acme.stored(lambda store: store.access.caller_by_key(made["key"])) is None
    acme.misused("key", "roll", made["id"], "--overlap", "soon")


# ---- what holds for all commands

COMMANDS_ON_AN_ACCOUNT = """
account show missing, account suspend missing, account resume missing, account credit missing 5,
account cap missing 5, account sources missing, user list missing, user invite missing ann@acme.example --role viewer,
user role missing ann@acme.example viewer, user remove missing ann@acme.example, domain add missing acme.example,
domain list missing, domain records missing acme.example, domain rotate missing acme.example,
domain verify missing acme.example, credential create missing, credential list missing,
credential revoke missing x, key create missing, key list missing, key revoke missing x, key roll missing x
"""
ON_AN_ACCOUNT = [words.split() for words in COMMANDS_ON_AN_ACCOUNT.split(",")]


def test_an_unknown_account_is_refused(acme: Shell) -> None:
    for words in ON_AN_ACCOUNT:
        assert acme.refused(*words) == "Error: there is no account named 'missing'\n"


def test_no_database_is_made_in_passing(shell: Shell) -> None:
    """Where there is no database, only `account create` makes one."""
    for words in ON_AN_ACCOUNT:
        assert "there is no database" in shell.refused(*words)
    assert not shell.data_dir.exists()


def test_lists_are_empty_before_anything_exists(shell: Shell) -> None:
    """A list without a database is an empty one, and leaves nothing behind."""
    assert shell.json("account", "list") == {"accounts": []}
    assert shell.json("key", "list") == {"keys": []}
    empty = documented("queue show") | {"pools": [], "due": 0, "deferred": 0, "scheduled": 0}
    assert shell.json("queue") == shell.json("queue", "show") == empty
    assert "appliance account create" in shell.text("account", "list")
    assert not shell.data_dir.exists()


def test_an_empty_list_says_how_to_fill_it(acme: Shell) -> None:
    assert "appliance domain add --account acme DOMAIN" in acme.text("domain", "list", "acme")
    assert "appliance credential create --account acme" in acme.text("credential", "list", "acme")
    assert "appliance key create --account acme" in acme.text("key", "list", "acme")


def test_a_name_that_is_no_text_is_wrong_usage(acme: Shell) -> None:
    """Bytes that are not UTF-8, and control characters, never reach the database."""
    for odd in ("\udcff", "a\x1b[2J", ""):
        acme.misused("account", "show", odd)
        acme.misused("key", "revoke", odd)


def test_the_config_may_be_named_in_four_places(acme: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """--config works on the program, the group and the command, the nearest one counts; else $APPLIANCE_CONFIG does."""
    config = str(acme.config)
    for words in (
        ["--config", config, "account", "list"],
        ["account", "--config", config, "list"],
        ["account", "list", "--config", config],
        ["--config", "nowhere.toml", "account", "list", "--config", config],
    ):
        assert "acme" in CliRunner().invoke(main, words).stdout
    assert "acme" not in CliRunner().invoke(main, ["account", "list"]).stdout
    monkeypatch.setenv("APPLIANCE_CONFIG", config)
    assert "acme" in CliRunner().invoke(main, ["account", "list"]).stdout


def test_a_wrong_config_is_one_line(shell: Shell) -> None:
    """A provisioning command names file, key and reason, like `serve`."""
    shell.config.write_text("[server]\nhostnam = 1\n")
    assert "server.hostnam: unknown key" in shell.refused("account", "list")


def test_a_file_that_is_no_database_is_one_line(shell: Shell) -> None:
    shell.data_dir.mkdir()
    database = shell.data_dir / "appliance.db"
    database.write_bytes(b"rubbish " * 1000)
    refusal = shell.refused("account", "list")
    assert "appliance.db: the database is damaged (file is not a database). Keep a copy" in refusal
    assert database.read_bytes() == b"rubbish " * 1000


def test_a_newer_database_is_one_line(acme: Shell) -> None:
    with sqlite3.connect(acme.data_dir / "appliance.db") as connection:
        connection.execute("INSERT INTO migrations VALUES (9999, 'later', 0)")
    connection.close()
    assert "run the newer appliance" in acme.refused("account", "list")


def test_a_data_directory_that_cannot_be_is_one_line(shell: Shell) -> None:
    """A data_dir below a file is refused with its path."""
    shell.data_dir.write_text("in the way")
    words = shell.creating()
    assert str(shell.data_dir) in shell.refused(*words, stdin="long enough")


@pytest.mark.usefixtures("new_databases")
def test_the_files_are_for_their_owner_only(acme: Shell) -> None:
    """What `account create` makes is closed to other users."""
    assert acme.data_dir.stat().st_mode & 0o777 == 0o700
    for file in acme.data_dir.iterdir():
        assert file.stat().st_mode & 0o077 == 0


def test_the_json_is_as_documented(acme: Shell) -> None:
    """Every command's JSON has exactly the fields that docs/cli.md shows."""
    acme.json("domain", "add", "acme", "acme.example")
    username, key_id = acme.json("credential", "create", "acme")["username"], acme.json("key", "create", "acme")["id"]
    last = {
        "account credit": ["5"],
        "account cap": ["5"],
        "account role": ["admin"],
        "account password": ["--password-stdin"],
        "domain add": ["acme.example"],
        "domain remove": ["zoo.example"],
        "domain records": ["acme.example"],
        "domain rotate": ["acme.example"],
        "credential remove": [username],
        "key remove": [key_id],
        "key roll": [acme.json("key", "create", "acme")["id"]],
        "inbound add": ["in.acme.example"],
        "inbound remove": ["in.acme.example"],
        "suppression add": ["ada@example.net"],
        "suppression remove": ["ada@example.net"],
        "suppression import": ["-"],
    }
    acme.json("domain", "add", "acme", "zoo.example")
    acme.json("suppressions", "add", "acme", "bob@example.net")
    for command, _ in leaves(main):
        if command in ELSEWHERE or command.startswith("queue "):
            continue
        name = [] if command in ("account list", "version") else ["acme"]
        stdin = "ada@example.org\nno address\n" if command == "suppression import" else "a password"
        answer = acme.json(*command.split(), *name, *last.get(command, []), stdin=stdin)
        assert fields(answer) == fields(documented(command)), command
    assert fields(acme.create("zoo")) == fields(documented("account create"))


# ---- help


def test_the_help_names_every_command() -> None:
    """`appliance --help` shows the first steps and each command by its full name."""
    text = CliRunner().invoke(main, ["--help"]).stdout
    for name, _ in leaves(main):
        assert f"\n  {name} " in text
    assert "appliance serve\n" in text
    assert "appliance account create acme" in text


@pytest.mark.parametrize("name", [name for name, _ in leaves(main)])
def test_every_command_explains_itself_by_an_example(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"appliance {name}" in result.stdout


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"appliance {__version__}\n"


def test_unknown_words_are_wrong_usage() -> None:
    for words in (["acount"], ["account", "erase"], ["account", "list", "--jsn"], ["serve", "now"]):
        assert CliRunner().invoke(main, words).exit_code == 2


# ---- the program itself


def test_a_terminal_gets_a_table_in_one_piece(acme: Shell) -> None:
    """On a terminal the first column, which other commands ask for, is never broken."""
    key_id = acme.json("key", "create", "acme")["id"]
    shown = shown_on_terminal("key", "list", "--config", str(acme.config))
    assert key_id in shown
    assert "\x1b[1m" in shown


def test_a_provisioning_command_imports_no_web_server(acme: Shell) -> None:
    """What makes `serve` slow to start is not loaded by other commands, nor is rich without a terminal."""
    check = (
        "import sys; from appliance.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "print(*sorted({'quart', 'hypercorn', 'rich', 'asyncio', 'jwt'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", check, "account", "list", "--config", str(acme.config)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "acme" in result.stdout
    assert result.stderr.strip() == ""


def test_a_command_imports_only_its_own_file() -> None:
    """Every start of the program, and the memory of a server, would pay for the others."""
    check = (
        "import sys; from appliance.cli import main; main(['config', 'path'], standalone_mode=False); "
        "print(*sorted(name for name in sys.modules if name.startswith('appliance.cli.')), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr.split() == [f"appliance.cli.{name}" for name in ("config", "database", "options", "output")]


def test_two_commands_at_once_both_count(acme: Shell, tmp_path: Path) -> None:
    """Commands that run at the same time wait for each other and lose nothing."""
    words = ("account", "credit", "acme", "1", "--config", str(acme.config))
    with TemporaryFile() as said:
        running = [fork(*words, directory=tmp_path, environment=os.environ, stdout=said, stderr=said) for _ in range(4)]
        assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert acme.json("account", "show", "acme")["credits"] == 104


def test_an_answer_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """On a full disk the exit code is 1, and there is no traceback."""
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "appliance", "config", "path", "--json"],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert result.returncode == 1
    assert result.stderr == "Error: done, but the output cannot be written: no space left on device\n"
