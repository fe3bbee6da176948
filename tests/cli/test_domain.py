"""`appliance domain records`, `rotate` and `verify`: keys, records, and real DNS packets."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from appliance.config.values import Endpoint
from appliance.environment import Environment
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.model.accounts import StoredDkimKey
from appliance.store import open_store
from tests.cli.shell import Shell, fields
from tests.docs.test_cli import documented
from tests.fakes.dns import DnsServer, zone_text

HOST = "mail.example.com"


@pytest.fixture
def acme(shell: Shell) -> Shell:
    """Commands, and the account acme with the domain acme.example on the server mail.example.com."""
    shell.config.write_text(f'[server]\ndata_dir = "{shell.data_dir}"\nhostname = "{HOST}"\n')
    shell.create("acme")
    shell.json("domain", "add", "acme", "acme.example")
    return shell


def records(shell: Shell, command: str = "records") -> list[dict[str, str]]:
    answer: dict[str, list[dict[str, str]]] = shell.json("domain", command, "acme", "acme.example")
    assert set(answer) == {"zone", "records"}
    return answer["records"]


def names(found: list[dict[str, str]]) -> list[str]:
    return [record["name"].partition(".")[0] for record in found if "._domainkey." in record["name"]]


# ---- keys and records


def test_a_domain_has_its_keys_at_once(acme: Shell) -> None:
    """`domain add` makes both keys, which sign with the key file beside the database; the private halves are sealed."""
    account = acme.json("account", "show", "acme")["id"]
    stored = acme.stored(lambda store: store.dkim_keys.of(account, "acme.example"))
    assert sorted(key.algorithm for key in stored) == ["ed25519", "rsa"]
    assert (acme.data_dir / KEY_FILE).stat().st_mode & 0o077 == 0

    async def opened() -> int:
        env = Environment()
        async with open_store(acme.data_dir, env, inline=True) as store:
            keys = SigningKeys(store, env, load_or_create(acme.data_dir))
            return len(await keys.in_use(account, "acme.example"))

    assert trio.run(opened) == 2


def test_adding_a_domain_again_keeps_its_keys(acme: Shell) -> None:
    before = records(acme)
    acme.json("domain", "add", "acme", "acme.example")
    assert records(acme) == before


def test_the_records_are_told_with_their_purpose(acme: Shell) -> None:
    """Two keys, SPF with the server's name, and DMARC, as JSON and in words."""
    found = records(acme)
    assert [set(record) for record in found] == [{"name", "type", "value", "purpose", "relative_name"}] * 4
    assert {record["type"] for record in found} == {"TXT"}
    values = {record["name"]: record["value"] for record in found}
    assert values["acme.example"] == f"v=spf1 a:{HOST} -all"
    assert values["_dmarc.acme.example"].startswith("v=DMARC1; p=none")
    assert sorted(value.partition(" p=")[0] for name, value in values.items() if "_domainkey" in name) == [
        "v=DKIM1; k=ed25519;",
        "v=DKIM1; k=rsa;",
    ]
    text = acme.text("domain", "records", "acme", "acme.example")
    for record in found:
        assert f"{record['purpose']}:\n  {record['name']}  TXT\n  {record['value']}\n" in text


def test_a_domain_without_keys_gets_them_with_its_records(acme: Shell) -> None:
    """A domain that came in another way, as at the first start, has keys as soon as its records are shown."""
    account = acme.json("account", "show", "acme")["id"]

    async def add() -> None:
        async with open_store(acme.data_dir, Environment(), inline=True) as store:
            await store.access.add_domain(account, "other.example", usable=True)

    trio.run(add)
    found = acme.json("domain", "records", "acme", "Other.Example")["records"]
    assert len(names(found)) == 2
    assert acme.json("domain", "records", "acme", "other.example")["records"] == found


def test_behind_a_relay_it_is_the_relay_that_sends(acme: Shell) -> None:
    text = acme.config.read_text()
    acme.config.write_text(f'{text}[delivery]\nmode = "relay"\nrelay_host = "192.0.2.25"\n')
    assert "v=spf1 ip4:192.0.2.25 -all" in [record["value"] for record in records(acme)]


def stored_keys(acme: Shell) -> list[StoredDkimKey]:
    account = acme.json("account", "show", "acme")["id"]
    found: list[StoredDkimKey] = acme.stored(lambda store: store.dkim_keys.of(account, "acme.example"))
    return found


def signing(acme: Shell) -> set[str]:
    return {key.selector for key in stored_keys(acme) if key.signs}


def test_a_rotation_makes_pending_keys_and_the_old_ones_sign(acme: Shell) -> None:
    """New records are listed first, the old ones last and still needed; a second rotation changes nothing."""
    before = names(records(acme))
    after = records(acme, "rotate")
    assert after == records(acme)
    current, leaving = names(after)[:2], names(after)[2:]
    assert set(leaving) == set(before) == signing(acme)
    assert not set(current) & set(before)
    assert ["keep until" in record["purpose"] for record in after] == [False] * 4 + [True] * 2
    text = acme.text("domain", "rotate", "acme", "acme.example")
    assert records(acme) == after
    assert text.startswith(
        "New keys sign for acme.example once their records are in DNS. Publish their records now:\n\n"
    )
    assert text.endswith(acme.text("domain", "records", "acme", "acme.example"))
    for record in records(acme):
        assert f"  {record['name']}  {record['type']}\n  {record['value']}\n" in text


@pytest.mark.parametrize("begun", [False, True])
def test_keys_that_leaked_are_replaced_at_once(acme: Shell, begun: bool) -> None:
    """With --now the new keys sign before DNS shows them, those of a rotation that has begun as well."""
    before = names(records(acme))
    pending = names(records(acme, "rotate"))[:2] if begun else []
    text = acme.text("domain", "rotate", "acme", "acme.example", "--now")
    assert text.startswith("New keys sign for acme.example. Publish their records now:\n\n")
    after = names(records(acme))
    assert set(after[2:]) == set(before)
    assert set(after[:2]) == signing(acme)
    assert not begun or set(after[:2]) == set(pending)


def test_without_the_key_file_new_keys_sign_at_once(acme: Shell) -> None:
    """The old ones cannot be opened any more, so there is nothing to wait for."""
    before = signing(acme)
    (acme.data_dir / KEY_FILE).unlink()
    after = records(acme, "rotate")
    assert signing(acme) == set(names(after)[:2])
    assert not signing(acme) & before


def test_a_resolver_that_cannot_be_reached_is_told_in_words(acme: Shell) -> None:
    """`domain verify` says what the system says, and shows no object of the program."""
    # Linux refuses a plain datagram to this address; a machine without a network has no route to it.
    acme.config.write_text(f'{acme.config.read_text()}[dns]\nresolvers = ["255.255.255.255:53"]\n')
    told = acme.run("domain", "verify", "acme", "acme.example").output
    assert "no usable answer from 255.255.255.255:53 for " in told
    assert "permission denied" in told or "network is unreachable" in told
    assert "Error(" not in told


@pytest.mark.parametrize("command", ["records", "rotate", "verify"])
def test_an_unknown_domain_is_refused(acme: Shell, command: str) -> None:
    acme.create("other")
    for account, domain in (("acme", "else.example"), ("other", "acme.example")):
        assert f"the account {account} has no domain {domain}" in acme.refused("domain", command, account, domain)
    assert "not a domain name" in acme.refused("domain", command, "acme", "a..b")


# ---- DNS


@dataclass
class Dns:
    """A DNS server on a thread of its own, beside the command's own event loop."""

    server: DnsServer
    endpoint: Endpoint


@contextmanager
def dns_server() -> Iterator[Dns]:
    """A DNS server that knows the address of the mail server, until the end of the block."""
    server = DnsServer({HOST: {"A": ["192.0.2.25"]}}, ttl=0)
    ready, running = threading.Event(), []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            endpoint = await nursery.start(server.run)
            running.append((endpoint, trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert ready.wait(10)
    endpoint, token, scope = running[0]
    try:
        yield Dns(server, endpoint)
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join()


@pytest.fixture
def dns(acme: Shell) -> Iterator[Dns]:
    with dns_server() as made:
        acme.config.write_text(f'{acme.config.read_text()}[dns]\nresolvers = ["{made.endpoint}"]\n')
        yield made


def verify(acme: Shell, code: int) -> Any:
    result = acme.run("domain", "verify", "acme", "acme.example", "--json")
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == code  # the line that says why
    return json.loads(result.stdout)


def publish(dns: Dns, found: list[dict[str, str]]) -> None:
    for record in found:
        value = zone_text(record["value"]) if record["type"] == "TXT" else record["value"]
        there = dns.server.zone.get(record["name"], {})
        dns.server.zone[record["name"]] = {**there, record["type"]: [value]}


def test_verify_is_content_when_all_is_published(acme: Shell, dns: Dns) -> None:
    """Exit code 0, and each record with what DNS shows, over real packets; the JSON is as documented."""
    wanted = records(acme)
    publish(dns, wanted)
    answer = verify(acme, 0)
    assert answer["ok"] is True
    assert [record["status"] for record in answer["records"]] == ["ok"] * 4
    assert [record["found"] for record in answer["records"]] == [[record["value"]] for record in wanted]
    assert fields(answer) == fields(documented("domain verify"))
    text = acme.text("domain", "verify", "acme", "acme.example")
    assert [line.split()[:2] for line in text.splitlines()] == [["ok", record["name"]] for record in wanted]


def test_the_list_shows_what_dns_showed(acme: Shell, dns: Dns) -> None:
    """Nothing before it was asked; then each kind of record, with the time; the JSON is as documented."""
    assert acme.json("domain", "list", "acme")["domains"][0]["dns"] is None
    assert acme.text("domain", "list", "acme").splitlines()[1].split()[1:6] == ["yes", "-", "-", "-", "-"]
    publish(dns, records(acme)[:3])
    verify(acme, 1)
    shown = acme.json("domain", "list", "acme")
    assert fields(shown) == fields(documented("domain list"))
    found = shown["domains"][0]["dns"]
    assert [found[kind] for kind in ("spf", "dkim", "dmarc", "return_path")] == ["ok", "ok", "missing", None]
    line = acme.text("domain", "list", "acme").splitlines()[1].split()
    assert line[:6] == ["acme.example", "yes", "ok", "ok", "missing", "-"]


def test_verify_says_what_is_missing_and_what_differs(acme: Shell, dns: Dns) -> None:
    """Exit code 1, with what DNS shows and what it should show; control characters do not reach the terminal."""
    wanted = records(acme)
    publish(dns, wanted)
    del dns.server.zone[wanted[0]["name"]]
    dns.server.zone["acme.example"] = {"TXT": ['"v=spf1 \\027[2J -all"']}
    answer = verify(acme, 1)
    assert answer["ok"] is False
    assert [record["status"] for record in answer["records"]] == ["missing", "ok", "differs", "ok"]
    result = acme.run("domain", "verify", "acme", "acme.example")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: DNS records of acme.example are wrong or missing: TXT {wanted[0]['name']}, TXT acme.example\n"
    )
    assert f"missing  {wanted[0]['name']}" in result.stdout
    assert f"expected:  {wanted[0]['value']}" in result.stdout
    assert r"published: v=spf1 \x1b[2J -all" in result.stdout


def test_a_receiving_domain_with_another_mx_gets_a_warning(acme: Shell, dns: Dns) -> None:
    """Before its record is replaced; with the right record there is nothing to publish."""
    records(acme)
    dns.server.zone |= {"in.acme.example": {"MX": ["10 mx.other.test."]}, "mx.other.test": {"A": ["192.0.2.99"]}}
    text = acme.text("inbound", "add", "acme", "in.acme.example")
    assert "Publish this record: in.acme.example. MX 10" in text
    assert "Careful: mail for it goes to mx.other.test, not to" in text
    dns.server.zone["in.acme.example"] = {"MX": [f"10 {HOST}."]}
    answer = acme.json("inbound", "add", "acme", "support@in.acme.example")
    assert [record["status"] for record in answer["records"]] == ["ok"]


def test_verify_switches_to_new_keys_that_dns_shows(acme: Shell, dns: Dns) -> None:
    """Not while one of them is missing; then the new ones sign, and the old records are told with their last day."""
    old = signing(acme)
    publish(dns, records(acme))
    wanted = records(acme, "rotate")
    new = set(names(wanted)[:2])
    publish(dns, wanted[:1])
    answer = verify(acme, 1)
    assert [record["status"] for record in answer["records"]] == ["ok", "missing", "ok", "ok", "ok", "ok"]
    assert (
        "(new key; signs once this record is published)" in acme.run("domain", "verify", "acme", "acme.example").stdout
    )
    assert signing(acme) == old
    publish(dns, wanted)
    answer = verify(acme, 0)
    assert signing(acme) == new
    assert [record["needed"] for record in answer["records"]] == [True] * 4 + [False] * 2
    assert all("a retired key: keep until 20" in record["purpose"] for record in answer["records"][4:])


def test_a_retired_record_that_is_gone_is_no_fault(acme: Shell, dns: Dns) -> None:
    publish(dns, [record for record in records(acme, "rotate") if "keep until" not in record["purpose"]])
    answer = verify(acme, 0)
    assert [(record["needed"], record["status"]) for record in answer["records"]][4:] == [(False, "missing")] * 2
    assert "(retired key)" in acme.text("domain", "verify", "acme", "acme.example")


# ---- return paths


def test_a_return_path_is_shown_where_feedback_is_taken(acme: Shell, dns: Dns) -> None:
    """Its records come with a listener; verify puts it to use once both are there, and fails if one leads elsewhere."""
    assert len(records(acme)) == 4
    acme.config.write_text(f'{acme.config.read_text()}[inbound]\nbind = ["127.0.0.1:2525"]\n')
    wanted = records(acme)
    added = {(record["name"], record["type"]): record["value"] for record in wanted[4:]}
    assert added == {
        ("bounces.acme.example", "MX"): f"10 {HOST}.",
        ("bounces.acme.example", "TXT"): f"v=spf1 a:{HOST} -all",
        ("_smtp._tls.acme.example", "TXT"): "v=TLSRPTv1; rua=mailto:tlsrpt@bounces.acme.example",
    }
    publish(dns, wanted[:4])
    answer = verify(acme, 0)
    assert [(record["needed"], record["status"]) for record in answer["records"]][4:] == [(False, "missing")] * 3
    assert "(optional)" in acme.text("domain", "verify", "acme", "acme.example")
    assert acme.json("domain", "list", "acme")["domains"][0]["return_path_at"] is None
    publish(dns, wanted)
    verify(acme, 0)
    assert acme.json("domain", "list", "acme")["domains"][0]["return_path_at"] is not None
    dns.server.zone["elsewhere.example"] = {"A": ["192.0.2.1"]}
    publish(dns, [{**wanted[4], "value": "10 elsewhere.example."}])
    assert [record["note"] for record in verify(acme, 1)["records"]][4] == (
        "mail for it goes to elsewhere.example, not to mail.example.com"
    )


def test_a_return_path_is_chosen_when_a_domain_is_added(acme: Shell) -> None:
    """At first or later; a name elsewhere is refused in one line, and changes nothing."""
    for name, wrong in (("new.example", "bounces.other.example"), ("acme.example", "acme.example")):
        told = acme.refused("domain", "add", "acme", name, "--return-path", wrong)
        assert f"return_path: '{wrong}' is not below {name}: choose a name such as bounces.{name}" in told
    assert [each["name"] for each in acme.json("domain", "list", "acme")["domains"]] == ["acme.example"]
    chosen = acme.json("domain", "add", "acme", "acme.example", "--return-path", "RP.acme.example")
    assert chosen["return_path"] == "rp.acme.example"
    assert acme.json("domain", "add", "acme", "acme.example")["return_path"] == "rp.acme.example"
    assert len(names(records(acme))) == 2
