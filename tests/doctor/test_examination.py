"""Whole examinations: other modes, databases that cannot be read, time that runs out."""

import shutil
import ssl
from pathlib import Path

import apsw
import pytest
import trio
import trustme
from msgspec.structs import replace

from appliance.config.load import parse
from appliance.config.settings import WarmupSettings
from appliance.dns.resolver import DnsAnswer
from appliance.doctor import Finding, FindingLevel, machine
from appliance.doctor.examination import DOMAINS_AT_ONCE, Examination
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.model.reports import DmarcCounts, DmarcSource, ReportResult
from appliance.model.warmup import begin
from appliance.store import FILE_NAME, Store
from appliance.store.engine import Tx
from appliance.store.reports import record_dmarc_report
from appliance.times import DAY
from tests.doctor.world import ADDRESS, CONFIG, DOMAIN, HOST, OUTSIDE, REVERSE, World, wrong
from tests.fakes.dns import Trouble, ZoneResolver
from tests.fakes.mx import Answer, FakeMx

FAULT, WARNING, OK = FindingLevel.FAULT, FindingLevel.WARNING, FindingLevel.OK


def test_a_damaged_database_is_told_and_the_rest_still_looked_at(world: World) -> None:
    """Its pages are spoiled: the domains in it are unknown, everything else is as before."""
    path = world.data_dir / FILE_NAME
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * 4096 * 3 + content[20480:])
    found = trio.run(world.examine)
    assert wrong(found) == {(FAULT, "database", str(path))}
    (told,) = (each for each in found if each.check == "database")
    assert "appliance restore" in told.advice


def test_a_file_that_is_no_database(world: World) -> None:
    (world.data_dir / FILE_NAME).write_bytes(b"something else entirely" * 100)
    assert wrong(trio.run(world.examine)) == {(FAULT, "database", str(world.data_dir / FILE_NAME))}


def test_a_database_of_a_later_version(world: World) -> None:
    connection = apsw.Connection(str(world.data_dir / FILE_NAME))
    connection.execute("INSERT INTO migrations VALUES (9999, 'later', 0)")
    connection.close()
    found = trio.run(world.examine)
    assert wrong(found) == {(FAULT, "database", str(world.data_dir / FILE_NAME))}
    assert [each.advice for each in found if each.check == "database"] == ["Run the newer appliance."]


def test_before_the_first_account_there_is_no_database(world: World) -> None:
    shutil.rmtree(world.data_dir)
    world.runs, world.listens = False, False
    found = trio.run(world.examine)
    assert wrong(found) == {(FAULT, "server", "appliance"), (WARNING, "database", str(world.data_dir / FILE_NAME))}
    assert not world.data_dir.exists()


def test_looking_changes_nothing(world: World) -> None:
    before = {each.name: each.read_bytes() for each in world.data_dir.iterdir()}
    trio.run(world.examine)
    after = {each.name: each.read_bytes() for each in world.data_dir.iterdir()}
    assert {name: after[name] for name in before} == before


# A source that is not on this machine.
AWAY = """
[delivery.sources.away]
ipv4 = "192.0.2.77"
[delivery.streams.transactional]
sources = ["away"]
"""


def test_behind_a_relay_only_the_relay_matters(world: World) -> None:
    """Neither names nor port 25 nor sources: the relay answers, and SPF names it."""
    world.settings |= {"mode": "relay", "relay_host": "smtp.relay.test", "acme": AWAY}
    world.zone["smtp.relay.test"] = {"A": ["127.0.0.1"]}
    world.zone[DOMAIN]["TXT"] = ['"v=spf1 a:smtp.relay.test -all"']
    del world.zone[HOST], world.zone[REVERSE], world.zone["mx.big.test"]
    assert wrong(trio.run(world.examine)) == set()


@pytest.mark.parametrize(
    ("percent", "is_published", "expected"),
    [(0, False, {"spf"}), (5, False, {"ptr", "spf"}), (5, True, set())],
    ids=["nothing goes direct", "a share goes direct", "all is published"],
)
def test_a_ramp_needs_what_direct_delivery_needs(
    world: World, percent: int, is_published: bool, expected: set[str]
) -> None:
    """SPF names this machine beside the relay from the start; PTR and port 25 matter once mail goes direct."""
    world.settings |= {"mode": "relay", "relay_host": "smtp.relay.test", "relay_tls": "off"}
    world.zone["smtp.relay.test"] = {"A": ["127.0.0.1"]}
    own = f"a:{HOST} " if is_published else ""
    world.zone[DOMAIN]["TXT"] = [f'"v=spf1 a:smtp.relay.test {own}-all"']
    if not is_published:
        del world.zone[REVERSE]
    world.stored(lambda store: store.ramp.change(lambda plan: plan.having("", percent, 0)))
    found = trio.run(world.examine)
    assert {check for _, check, _ in wrong(found)} == expected
    assert len([finding for finding in found if finding.check == "port"]) == 1 + (percent > 0)


def test_a_ramp_uses_the_sources(world: World) -> None:
    """Mail that goes direct leaves from them, also with a relay for the rest."""
    world.settings |= {"mode": "relay", "relay_host": "smtp.relay.test", "relay_tls": "off", "acme": AWAY}
    world.zone["smtp.relay.test"] = {"A": ["127.0.0.1"]}
    world.stored(lambda store: store.ramp.change(lambda plan: plan.having("", 5, 0)))
    assert ("source", "away") in {(check, subject) for _, check, subject in wrong(trio.run(world.examine))}


@pytest.mark.parametrize("tls", ["required", "implicit"])
def test_a_relay_is_asked_as_delivery_does_it(world: World, tls: str) -> None:
    """It may have a private address, whatever may be dialled otherwise, and may speak under TLS only."""
    world.settings |= {"mode": "relay", "relay_host": "127.0.0.1", "relay_tls": tls, "allow_networks": "[]"}
    world.zone[DOMAIN]["TXT"] = ['"v=spf1 ip4:127.0.0.1 -all"']
    assert wrong(trio.run(world.examine)) == set()
    world.mx_listens = False
    world.settings.pop("mx")
    (told,) = (each for each in trio.run(world.examine) if each.check == "port")
    assert told.level is FAULT
    assert "delivery.relay_host" in told.advice


@pytest.mark.parametrize(
    ("password", "answers", "level", "words"),
    [
        ("secret", {}, OK, "accepts our login, over TLSv1.3, TLS_AES_256_GCM_SHA384, verified by PKIX"),
        ("a guess", {}, FAULT, "rejects our login: 535 5.7.8 no"),
        ("secret", {"AUTH": b"454 4.7.0 not now\r\n"}, WARNING, "login failed: 454 4.7.0 not now"),
        ("secret", {"STARTTLS": b"454 4.7.0 no\r\n"}, FAULT, "the server refused STARTTLS: 454 4.7.0 no"),
    ],
)
def test_a_login_that_the_relay_refuses_is_a_fault(
    world: World, password: str, answers: dict[str, Answer | list[Answer]], level: FindingLevel, words: str
) -> None:
    """The relay is logged in to as delivery does it; what it answers is a line of its own, and no mail is begun."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("smtp.relay.test").configure_cert(context)
    authority.cert_pem.write_to_path(world.directory / "ca.pem")
    world.mx = FakeMx(tls=context, logins={"ada": "secret"}, answers=answers)
    login = f'relay_username = "ada"\nrelay_password = "{password}"\nca_file = "{world.directory / "ca.pem"}"'
    world.settings |= {"mode": "relay", "relay_host": "smtp.relay.test", "relay_login": login}
    world.zone["smtp.relay.test"] = {"A": ["127.0.0.1"]}
    (told,) = (each for each in trio.run(world.examine) if each.check == "relay")
    assert (told.level, told.subject) == (level, "smtp.relay.test")
    assert words in told.text
    assert not any(command.startswith("MAIL") for command in world.mx.commands)


def test_in_the_sandbox_nothing_leaves(world: World) -> None:
    """That is worth a warning on a machine that should send. A missing SPF record stops no mail there."""
    world.settings["mode"] = "sandbox"
    del world.zone["gmail.com"], world.zone[REVERSE], world.zone[DOMAIN]["TXT"]
    assert wrong(trio.run(world.examine)) == {(WARNING, "hostname", HOST), (WARNING, "spf", DOMAIN)}


def test_a_generated_certificate_is_a_warning(world: World) -> None:
    world.settings |= {"cert": "", "key": ""}
    assert wrong(trio.run(world.examine)) == {(WARNING, "certificate", "smtp.tls_cert")}


def test_time_that_runs_out_is_told(world: World) -> None:
    """A DNS server that says nothing does not hold up the examination beyond its limit."""
    world.zone[REVERSE] = {"PTR": Trouble.SILENCE}
    world.limit = 1.0
    found = trio.run(world.examine)
    assert (WARNING, "hostname", "-") in wrong(found)
    assert any("no result within 1 s" in each.text for each in found)


def test_the_records_are_ready_to_paste(world: World) -> None:
    missing = {name: world.zone.pop(name) for name in (REVERSE, world.dkim["rsa"], f"_dmarc.{DOMAIN}")}
    found = trio.run(world.examine)
    pasted = {record.name: (record.type, record.value) for each in found for record in each.records}
    assert pasted.keys() == missing.keys()
    assert pasted[REVERSE] == ("PTR", f"{HOST}.")
    for name in (world.dkim["rsa"], f"_dmarc.{DOMAIN}"):
        published = missing[name]["TXT"]
        assert not isinstance(published, Trouble)
        assert pasted[name] == ("TXT", published[0].replace('" "', "").strip('"'))


def test_a_warm_up_is_a_line_for_each_pool_and_address(world: World) -> None:
    """Which day it is, what may go in an hour and what has; nothing is wrong with it, and off it is no line."""
    now = OUTSIDE.now()
    third = replace(begin("google", "192.0.2.1", now), day=2).take(WarmupSettings(), now, 3)
    others = [begin(f"pool{number:02}.test", "192.0.2.1", now).take(WarmupSettings(), now, 2) for number in range(25)]
    world.stored(lambda store: store.warmups.keep([third, *others]))
    assert [each for each in trio.run(world.examine) if each.check == "warmup"] == []
    world.settings["warmup"] = "true"
    found = [each for each in trio.run(world.examine) if each.check == "warmup"]
    assert {each.level for each in found} == {FindingLevel.OK}
    assert found[0].subject == "google from 192.0.2.1"
    assert found[0].text.startswith("day 3 of 30: 39 an hour, 3 used; next at ")
    assert [each.subject for each in found[1:4]] == [f"pool0{number}.test from 192.0.2.1" for number in range(3)]
    assert (len(found), found[-1].text) == (21, "6 more are being warmed up")


def test_the_machine_says_whether_its_clock_is_kept() -> None:
    """True, False, or that it cannot be told; asked of this machine."""
    assert machine.synchronised() in (True, False, None)


def test_advice_about_the_clock_fits_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "synchronised", lambda: False)
    (found,) = machine.check_clock(0, None)
    assert found.advice == "timedatectl set-ntp true (for a container: on its host)"


def test_a_directory_to_be_is_on_some_disk(world: World, tmp_path: Path) -> None:
    assert ADDRESS  # the world is whole
    shutil.rmtree(world.data_dir)
    world.runs, world.listens = False, False
    world.settings["data_dir"] = tmp_path / "a" / "b"
    found = trio.run(world.examine)
    (disk,) = (each for each in found if each.check == "disk")
    assert (disk.level, disk.subject) == (FindingLevel.OK, str(tmp_path / "a" / "b"))


def spf_finding(world: World, *records: str) -> Finding:
    world.zone[DOMAIN]["TXT"] = [f'"{record}"' for record in records]
    (found,) = (each for each in trio.run(world.examine) if each.check == "spf")
    return found


def test_the_record_to_paste_keeps_what_is_there(world: World) -> None:
    """A second SPF record would spoil both, so ours goes into the one there is, where it is read."""
    found = spf_finding(world, "v=spf1 include:mx.big.test -all")
    assert found.records == ()  # it leads to a name without SPF: nothing put into it would help
    assert "Fix that first" in found.advice
    found = spf_finding(world, f"v=spf1 ip4:198.51.100.1 -all +A:{HOST}")
    assert [each.value for each in found.records] == [f"v=spf1 ip4:198.51.100.1 a:{HOST} -all"]
    assert "instead of" in found.advice
    found = spf_finding(world, "v=spf1 -all", "v=spf1 ~all")
    assert "Merge these into one record" in found.advice


def test_a_record_made_by_others_is_not_pasted(world: World) -> None:
    """Quotes and escapes could end a line of a zone file; and a long record is not shown whole."""
    found = spf_finding(world, r"v=spf1 x=\"\027[2J -all")
    assert [each.value for each in found.records] == [f"v=spf1 a:{HOST} -all"]
    found = spf_finding(world, f'v=spf1 x={"y" * 200}" "{"y" * 200}" "{"y" * 200} -all')
    assert found.records == ()
    assert len(found.advice) < 500


def test_pending_keys_are_a_warning(world: World) -> None:
    key = load_or_create(world.data_dir)

    async def rotate(store: Store) -> None:
        await SigningKeys(store, OUTSIDE, key).begin_rotation((await store.accounts.named("acme")).id, DOMAIN)

    world.stored(rotate)
    found = [each for each in trio.run(world.examine) if each.level is not OK]
    assert [(each.level, each.check, len(each.records)) for each in found] == [(WARNING, "dkim", 1)] * 2
    assert all("publish it now" in each.advice for each in found)


def test_keys_that_retired_need_not_be_opened(world: World) -> None:
    """After a lost key file and the advised rotation nothing more is to do."""
    (world.data_dir / KEY_FILE).unlink()
    key = load_or_create(world.data_dir)

    async def rotate(store: Store) -> None:
        account = (await store.accounts.named("acme")).id
        await SigningKeys(store, OUTSIDE, key).rotate(account, DOMAIN)
        await store.webhooks.delete(account)

    assert (FAULT, "database", DOMAIN) in wrong(trio.run(world.examine))
    world.stored(rotate)
    assert not [each for each in wrong(trio.run(world.examine)) if each[1] == "database"]


def test_hundreds_of_domains_are_not_all_asked_for_at_once(world: World) -> None:
    class Counting(ZoneResolver):
        open_now = most = 0

        async def txt(self, name: str) -> DnsAnswer[str]:
            self.open_now += 1
            self.most = max(self.most, self.open_now)
            await trio.sleep(0.005)
            self.open_now -= 1
            return await super().txt(name)

    async def add(store: Store) -> None:
        for number in range(300):
            await store.access.add_domain((await store.accounts.named("acme")).id, f"d{number}.example", usable=True)

    world.stored(add)
    resolver = Counting(world.zone)
    settings = {**world.settings, "http": 1, "smtp": 1, "mx": 1, "mode": "sandbox"}
    config = parse(CONFIG.format(**settings), world.directory / "config.toml")
    found = trio.run(Examination(config, OUTSIDE, resolver).run)
    assert len([each for each in found if each.check == "spf"]) == 301
    assert 1 < resolver.most <= 4 * DOMAINS_AT_ONCE


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "8.8.8.8"])
def test_what_others_could_read_is_reported(world: World, host: str) -> None:
    """HTTP without TLS carries passwords, and metrics ask for none; on a loopback address that is fine."""
    world.runs = world.listens = False
    world.settings |= {"metrics": f'["{host}:0", "{host}:1"]', "http_host": host, "cert": "", "key": ""}
    found = {each[1:] for each in wrong(trio.run(world.examine)) if each[0] is WARNING}
    assert {("certificate", "http.tls_cert"), ("listener", f"{host}:1")} <= found
    world.settings |= {"metrics": '["127.0.0.1:1", "10.0.0.1:1"]', "http_host": "127.0.0.1"}
    found = {each[1:] for each in wrong(trio.run(world.examine)) if each[0] is WARNING}
    assert not {check for check, subject in found if check == "listener" or subject == "http.tls_cert"}


def test_reports_lead_to_the_next_step_of_the_policy(world: World) -> None:
    """Two weeks of DMARC reports, of which all own mail passed: a stricter policy is proposed, and nothing is wrong."""
    sources = (DmarcSource("192.0.2.1", 50, 50, 50, 50, 0, 0), DmarcSource("198.51.100.7", 2, 0, 0, 0, 0, 0))

    def record(tx: Tx) -> None:
        now = OUTSIDE.now()
        for back in range(1, 15):
            report = DmarcCounts(
                org="google.com",
                report_id=str(back),
                begins_at=now - back * DAY,
                domain=DOMAIN,
                policy="none",
                percentage=100,
                sources=sources,
            )
            assert record_dmarc_report(tx, now, f"bounces.{DOMAIN}", report) is ReportResult.RECORDED

    world.stored(lambda store: store.engine.write(record))
    found = trio.run(world.examine)
    assert wrong(found) == set()
    (step,) = (each for each in found if each.check == "dmarc" and each.advice)
    assert step.text == "100 % of 700 own messages passed, in reports of 14 days under p=none"
    assert step.advice.startswith("Change the record to p=quarantine, unless")
    assert step.records[0].value.startswith("v=DMARC1; p=quarantine")
