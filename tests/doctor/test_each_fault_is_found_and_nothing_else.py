"""A machine in order, and then with one thing wrong at a time: that is found, and nothing else is."""

import datetime
import socket
from collections.abc import Callable

import pytest
import trio
import trustme
from cryptography.hazmat.primitives import serialization

from appliance.doctor import FindingLevel, RecordToPublish
from appliance.environment import Environment
from appliance.store import Store
from appliance.store.pools import EVERY
from appliance.times import DAY
from tests import stored_mail
from tests.doctor.world import ADDRESS, DOMAIN, HOST, LISTED, OUTSIDE, REVERSE, World, wrong
from tests.fakes.dns import Records, Trouble
from tests.fakes.mx import FakeMx

FAULT, WARNING = FindingLevel.FAULT, FindingLevel.WARNING


def test_a_machine_in_order_has_nothing_wrong(world: World) -> None:
    found = trio.run(world.examine)
    assert wrong(found) == set()
    checks = {each.check for each in found}
    assert checks == {
        *("server", "listener", "database", "disk", "clock", "certificate", "hostname", "ptr", "port", "blocklist"),
        *("dkim", "spf", "dmarc", "mx"),
    }


def short_name(world: World) -> None:
    world.settings["hostname"] = "mail"
    world.certify(names=("mail",))
    world.zone |= {"mail": {"A": [ADDRESS]}, REVERSE: {"PTR": ["mail."]}}
    world.zone[DOMAIN]["TXT"] = ['"v=spf1 a:mail -all"']


def stopped(world: World) -> None:
    world.runs = world.listens = False


def another_host(world: World) -> None:
    """A PTR that is confirmed, with another name than the one in HELO."""
    world.zone[REVERSE] = {"PTR": ["vps7.rented.test."]}
    world.zone["vps7.rented.test"] = {"A": [ADDRESS]}


def clock_behind(world: World) -> None:
    ahead = Environment(now=lambda: OUTSIDE.now() + DAY)

    async def accept(store: Store) -> None:
        await stored_mail.accept(store, ahead, (await store.accounts.named("acme")).id, "a@example.net")

    world.stored(accept)


def retired(world: World) -> None:
    sql = "UPDATE dkim_keys SET retired_at = created_at WHERE algorithm = 'ed25519'"
    world.stored(lambda store: store.engine.change(sql, {}))
    del world.zone[world.dkim["ed25519"]]


def encrypt_key(world: World) -> None:
    """A private key that needs a password, which a service cannot ask for."""
    path = world.directory / "key.pem"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    password = serialization.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password)
    path.write_bytes(pem)


def other_key_file(world: World) -> None:
    """A key file that is not the one under which the keys were sealed."""
    key = world.data_dir / "appliance.key"
    key.chmod(0o600)
    key.write_bytes(bytes(range(32)))
    key.chmod(0o400)


SPF, DMARC = DOMAIN, f"_dmarc.{DOMAIN}"
CERT = ["http.tls_cert", "smtp.tls_cert"]

# What is done to the world, and all that must then be wrong.
SEEDS: dict[str, tuple[Callable[[World], object], list[tuple[FindingLevel, str, str | Callable[[World], str]]]]] = {
    "port 25 is closed": (
        lambda w: setattr(w, "mx_listens", False),
        [(FAULT, "port", lambda w: str(w.settings["mx"]))],
    ),
    "mail servers turn us away": (
        lambda w: setattr(w, "mx", FakeMx(answers={"greeting": b"554 5.7.1 blocked\r\n"})),
        [(FAULT, "port", lambda w: str(w.settings["mx"]))],
    ),
    "the hostname is no full name": (short_name, [(FAULT, "hostname", "mail")]),
    "the hostname leads elsewhere": (
        lambda w: w.zone.update({HOST: {"A": ["203.0.113.99"]}}),
        [(FAULT, "hostname", HOST)],
    ),
    "the hostname cannot be asked for": (
        lambda w: w.zone.update({HOST: {"A": [ADDRESS], "AAAA": Trouble.SERVFAIL}}),
        [(WARNING, "hostname", HOST), (WARNING, "spf", SPF)],
    ),
    "there is no PTR": (lambda w: w.zone.pop(REVERSE), [(FAULT, "ptr", ADDRESS)]),
    "the PTR does not lead back": (
        lambda w: w.zone.update({REVERSE: {"PTR": ["vps7.rented.test."]}}),
        [(FAULT, "ptr", ADDRESS)],
    ),
    "the PTR is another name than HELO's": (another_host, [(WARNING, "ptr", ADDRESS)]),
    "the PTR cannot be asked for": (
        lambda w: w.zone.update({REVERSE: {"PTR": Trouble.SERVFAIL}}),
        [(WARNING, "ptr", ADDRESS)],
    ),
    "the address is on a blocklist": (
        lambda w: w.zone.update({LISTED: {"A": ["127.0.0.2"], "TXT": ['"see bl.test"']}}),
        [(FAULT, "blocklist", f"{ADDRESS} at bl.test")],
    ),
    "the blocklist does not serve our resolver": (
        lambda w: w.zone.update({LISTED: {"A": ["127.255.255.254"]}}),
        [(WARNING, "blocklist", f"{ADDRESS} at bl.test")],
    ),
    "the blocklist is down": (
        lambda w: w.zone.update({LISTED: {"A": Trouble.SERVFAIL}}),
        [(WARNING, "blocklist", f"{ADDRESS} at bl.test")],
    ),
    "the RSA key is not published": (lambda w: w.zone.pop(w.dkim["rsa"]), [(FAULT, "dkim", lambda w: w.dkim["rsa"])]),
    "another RSA key is published": (
        lambda w: w.zone.update({w.dkim["rsa"]: {"TXT": ['"v=DKIM1; k=rsa; p=AAAA"']}}),
        [(FAULT, "dkim", lambda w: w.dkim["rsa"])],
    ),
    "the Ed25519 key is not published": (
        lambda w: w.zone.pop(w.dkim["ed25519"]),
        [(WARNING, "dkim", lambda w: w.dkim["ed25519"])],
    ),
    "a retired key is gone from DNS too early": (retired, [(WARNING, "dkim", lambda w: w.dkim["ed25519"])]),
    "there is no SPF record": (lambda w: w.zone.update({DOMAIN: {"MX": [f"10 {HOST}."]}}), [(FAULT, "spf", SPF)]),
    "SPF leaves us out": (
        lambda w: w.zone[DOMAIN].update(TXT=['"v=spf1 ip4:198.51.100.0/24 -all"']),
        [(FAULT, "spf", SPF)],
    ),
    "there are two SPF records": (
        lambda w: w.zone[DOMAIN].update(TXT=[f'"v=spf1 a:{HOST} -all"', '"v=spf1 -all"']),
        [(FAULT, "spf", SPF)],
    ),
    "there is no DMARC record": (lambda w: w.zone.pop(DMARC), [(WARNING, "dmarc", DOMAIN)]),
    "the domain has no MX": (lambda w: w.zone[DOMAIN].pop("MX"), [(WARNING, "mx", DOMAIN)]),
    "the domain has a null MX": (lambda w: w.zone[DOMAIN].update(MX=["0 ."]), [(WARNING, "mx", DOMAIN)]),
    "the clock is behind": (clock_behind, [(FAULT, "clock", "system")]),
    "the disk is full": (
        lambda w: w.settings.update(min_free_disk="100000TiB"),
        [(FAULT, "disk", lambda w: str(w.data_dir))],
    ),
    "the certificate has expired": (
        lambda w: w.certify(not_after=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)),
        [(FAULT, "certificate", name) for name in CERT],
    ),
    "the certificate expires soon": (
        lambda w: w.certify(not_after=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)),
        [(WARNING, "certificate", name) for name in CERT],
    ),
    "the certificate is for another name": (
        lambda w: w.certify(names=("www.example.com",)),
        [(FAULT, "certificate", name) for name in CERT],
    ),
    "the certificate is none": (
        lambda w: (w.directory / "cert.pem").write_text("not a certificate"),
        [(FAULT, "certificate", name) for name in CERT],
    ),
    "the private key is encrypted": (encrypt_key, [(FAULT, "certificate", name) for name in CERT]),
    "the private key is of another certificate": (
        lambda w: trustme.CA().issue_cert(HOST).private_key_pem.write_to_path(w.directory / "key.pem"),
        [(FAULT, "certificate", name) for name in CERT],
    ),
    "the private key can be read by others": (
        lambda w: (w.directory / "key.pem").chmod(0o644),
        [(WARNING, "certificate", name) for name in CERT],
    ),
    "the server was started with another name": (
        lambda w: setattr(w, "greets_as", "0a1b2c3d4e5f"),
        [(FAULT, "server", "appliance")],
    ),
    "the listeners do not answer": (
        lambda w: setattr(w, "listens", False),
        [(FAULT, "listener", lambda w, n=name: f"127.0.0.1:{w.settings[n]}") for name in ("http", "smtp")],  # type: ignore[misc]
    ),
    "the server does not run, and another program has its ports": (
        lambda w: setattr(w, "runs", False),
        [
            (FAULT, "server", "appliance"),
            *((FAULT, "listener", lambda w, n=name: f"127.0.0.1:{w.settings[n]}") for name in ("http", "smtp")),
        ],
    ),
    "the server does not run": (stopped, [(FAULT, "server", "appliance")]),
    "the data directory is open to others": (
        lambda w: w.data_dir.chmod(0o755),
        [(FAULT, "database", lambda w: str(w.data_dir))],
    ),
    "the key file is another": (other_key_file, [(FAULT, "database", DOMAIN), (FAULT, "database", "account acme")]),
    "all mail is paused": (
        lambda w: w.stored(lambda store: store.pools.hold(EVERY, "restored")),
        [(FAULT, "queue", "all mail")],
    ),
    "a pool is held": (
        lambda w: w.stored(lambda store: store.pools.hold("google", "refused")),
        [(WARNING, "queue", "pool google")],
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_fault_is_found_and_nothing_else(world: World, seed: str) -> None:
    """One thing wrong gives its finding, with something to do about it, and no other."""
    spoil, expected = SEEDS[seed]
    spoil(world)
    found = trio.run(world.examine)
    wanted = {
        (level, check, subject if isinstance(subject, str) else subject(world)) for level, check, subject in expected
    }
    assert wrong(found) == wanted
    for each in found:
        silent = each.check == "blocklist" and "lookup failed" in each.text
        assert each.level is FindingLevel.OK or each.advice or silent


# ---- return paths

RETURN_PATH = f"bounces.{DOMAIN}"
RIGHT_MX, RIGHT_SPF = [f"10 {HOST}."], [f'"v=spf1 a:{HOST} -all"']


@pytest.mark.parametrize(
    ("shown", "levels"),
    [
        ({"MX": RIGHT_MX, "TXT": RIGHT_SPF}, []),
        ({}, [WARNING, WARNING]),
        ({"MX": RIGHT_MX}, [WARNING]),
        ({"TXT": ['"v=spf1 -all"']}, [WARNING, WARNING]),  # a wildcard's, where no return path was begun
        ({"MX": RIGHT_MX, "TXT": ['"v=spf1 -all"']}, [FAULT]),
        ({"MX": ["10 mx.big.test."], "TXT": RIGHT_SPF}, [FAULT]),
        ({"MX": Trouble.SERVFAIL, "TXT": RIGHT_SPF}, [WARNING]),
    ],
)
def test_a_return_path_may_be_missing_but_not_wrong(
    world: World, shown: dict[str, Records], levels: list[FindingLevel]
) -> None:
    """Mail goes without it; one that leads elsewhere loses what comes back. The records are told."""
    world.zone[RETURN_PATH] = shown
    with socket.create_server(("127.0.0.1", 0)) as listener:
        world.settings["inbound"] = f'["127.0.0.1:{listener.getsockname()[1]}"]'
        found = trio.run(world.examine)
    findings = [each for each in found if each.check == "return_path"]
    assert {each.subject for each in findings} == {RETURN_PATH}
    assert [each.level for each in findings if each.level is not FindingLevel.OK] == levels
    assert {each.check for each in found if each.level is not FindingLevel.OK} <= {"return_path"}
    if not shown:
        assert [record for each in findings for record in each.records] == [
            RecordToPublish(RETURN_PATH, "MX", f"10 {HOST}."),
            RecordToPublish(RETURN_PATH, "TXT", f"v=spf1 a:{HOST} -all"),
        ]


# ---- receiving domains


@pytest.mark.parametrize(
    ("exchangers", "listens", "levels"),
    [
        ([f"10 {HOST}."], True, []),
        ([], True, [FAULT]),
        (["10 mx.big.test."], True, [WARNING]),
        ([f"10 {HOST}."], False, [WARNING]),
    ],
)
def test_a_receiving_domain_leads_here(
    world: World, exchangers: list[str], listens: bool, levels: list[FindingLevel]
) -> None:
    receiving = f"in.{DOMAIN}"

    async def add(store: Store) -> None:
        await store.receiving.add((await store.accounts.named("acme")).id, receiving)

    world.stored(add)
    world.zone |= {receiving: {"MX": exchangers}, RETURN_PATH: {"MX": RIGHT_MX, "TXT": RIGHT_SPF}}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        world.settings["inbound"] = f'["127.0.0.1:{listener.getsockname()[1]}"]' if listens else "[]"
        found = trio.run(world.examine)
    findings = [each for each in found if each.check == "receiving_mx"]
    assert {each.subject for each in findings} == {receiving}
    assert [each.level for each in findings if each.level is not FindingLevel.OK] == levels
    assert wrong(found) == {(level, "receiving_mx", receiving) for level in levels}


def test_the_services_group_may_read_the_private_key(world: World) -> None:
    """As the installation guide has it: root's file, and the group's to read."""
    (world.directory / "key.pem").chmod(0o640)
    assert wrong(trio.run(world.examine)) == set()
