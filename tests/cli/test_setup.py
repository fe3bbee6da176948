"""`appliance setup`: writes what is missing, changes nothing that is there, and can be run again."""

import json
import os
import re
import select
import signal
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from appliance.cli import main
from appliance.cli.settings_file import with_setting
from appliance.cli.setup import STOPPED
from appliance.cli.setup_records import zone_lines
from appliance.config import load
from appliance.deliver.tls_policy import policy_id, read_policy
from appliance.doctor import RecordToPublish, fault
from appliance.system.data_directory import only_server
from tests.cli.test_domain import dns_server
from tests.fakes.dns import DnsServer, Trouble
from tests.fakes.dns_thread import served
from tests.terminal import open_terminal

HOST = "mail.example.com"


@pytest.fixture
def resolvers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The setting of a DNS server that knows little; the machine has no settings of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("APPLIANCE_CONFIG", raising=False)
    monkeypatch.setattr(load, "SYSTEM_FILE", tmp_path / "etc" / "config.toml")
    with dns_server() as dns:
        yield f'[dns]\nresolvers = ["{dns.endpoint}"]\n'


def ran(*words: str) -> Result:
    return CliRunner().invoke(main, ["setup", *words])


def answer(*words: str) -> Any:
    result = ran(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_what_is_missing_is_made_once(tmp_path: Path, resolvers: str) -> None:
    """The name goes into the file, whose comments stay; an administrator, a key and the domain; then nothing more."""
    file = tmp_path / "config.toml"
    file.write_text(f'# Mine.\n[server]\nhostname = ""  # soon\ndata_dir = "data"\n{resolvers}')
    file.chmod(0o600)
    made = answer("--hostname", HOST, "--email", "ada@example.org")
    assert file.read_text() == f'# Mine.\n[server]\nhostname = "{HOST}"  # soon\ndata_dir = "data"\n{resolvers}'
    assert file.stat().st_mode & 0o777 == 0o600
    assert (made["account"], made["login"], made["domain"]) == ("main", "ada@example.org", "example.com")
    assert made["key"].startswith("ma_live_")
    assert len(made["password"]) == 16
    assert made["dns_ok"] is False
    assert {"hostname", "port"} <= {each["check"] for each in made["findings"]}
    before = file.read_bytes()
    again = answer()
    assert file.read_bytes() == before
    assert (again["password"], again["key"], again["zone"]) == (None, None, made["zone"])
    listed = json.loads(CliRunner().invoke(main, ["account", "list", "--json"]).stdout)["accounts"]
    assert [each["name"] for each in listed] == ["main"]
    assert len(json.loads(CliRunner().invoke(main, ["key", "list", "--json"]).stdout)["keys"]) == 1


def test_the_zone_file_has_every_record(tmp_path: Path, resolvers: str) -> None:
    """Names end in a dot, text is quoted in strings of up to 255 characters, and what is no record is a comment."""
    inbound = '[inbound]\nbind = ["127.0.0.1:0"]\n'
    (tmp_path / "config.toml").write_text(f'[server]\nhostname = "{HOST}"\ndata_dir = "data"\n{resolvers}{inbound}')
    lines = [line for line in answer()["zone"].splitlines() if not line.startswith(";")]
    kinds = {tuple(line.split(" ", 2)[:2]) for line in lines}
    assert {("example.com.", "TXT"), ("_dmarc.example.com.", "TXT"), ("bounces.example.com.", "MX")} <= kinds
    (mx,) = [line for line in lines if " MX " in line]
    assert mx.endswith(f" {HOST}.")
    (rsa,) = [line for line in lines if "k=rsa" in line]
    strings = rsa.partition(' TXT "')[2].rstrip('"').split('" "')
    assert [len(each) <= 255 for each in strings] == [True, True]


def test_an_address_that_the_machine_cannot_know_is_asked_for() -> None:
    """Behind a NAT and in a container: both of its records are there, as comments to fill in."""
    found = fault("hostname", HOST, "has no address in DNS", "", RecordToPublish(HOST, "A", "ADDRESS"))
    assert "\n".join(zone_lines([], [found])).splitlines() == [
        f"; the public address of this machine: {HOST}. A ADDRESS",
        f"; PTR, to be ordered from the provider of this machine: that address must lead to {HOST}.",
    ]


class OlderServer(socketserver.BaseRequestHandler):
    """Greets with the name that it was started with."""

    def handle(self) -> None:
        self.request.sendall(b"220 0a1b2c3d4e5f ESMTP\r\n")


@pytest.mark.parametrize("tls", [False, True], ids=["STARTTLS", "TLS only"])
def test_a_server_with_older_settings_sends_nothing(tmp_path: Path, resolvers: str, tls: bool) -> None:
    """It would greet with the wrong name: that is said among what was found, and where the message would be."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OlderServer) as server, only_server(tmp_path / "data"):
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trustme.CA().issue_cert("0a1b2c3d4e5f").configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        listeners = {
            "bind": [],
            "bind_tls": [],
            "bind_tls" if tls else "bind": [f"127.0.0.1:{server.server_address[1]}"],
        }
        bind = "[smtp]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in listeners.items())
        (tmp_path / "config.toml").write_text(f'[server]\nhostname = ""\ndata_dir = "data"\n{resolvers}{bind}')
        result = ran("--hostname", HOST, "--email", "ada@example.org", "--to", "ada@example.net", "--json")
        (shown,) = [each for each in json.loads(result.stdout)["findings"] if each["check"] == "server"]
        told = ran("--to", "ada@example.net")
        server.shutdown()
    assert (result.exit_code, json.loads(result.stdout)["test"]) == (1, None)
    assert shown["text"] == f"runs with older settings: it calls itself 0a1b2c3d4e5f, not {HOST}"
    assert (told.exit_code, told.stderr) == (1, "Error: the test message was not sent\n")
    assert "Restart the server or its container" in told.stdout.partition("No test message was sent.")[2]
    assert json.loads(CliRunner().invoke(main, ["messages", "--json"]).stdout)["messages"] == []


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ('[server]\nhostname=""\n', '[server]\nhostname = "a.b"\n'),
        ('[server]\nhostname = "old.example"  # ours\n[acme]\n', '[server]\nhostname = "a.b"  # ours\n[acme]\n'),
        ("[server]\n  hostname = 'old'\n", '[server]\nhostname = "a.b"\n'),
        ('[server] # x\ndata_dir = "d"\n', '[server] # x\nhostname = "a.b"\ndata_dir = "d"\n'),
        ('[http]\nhostname = "no"\n[server]', '[http]\nhostname = "no"\n[server]\nhostname = "a.b"\n'),
        ('[http]\nbind = ["127.0.0.1:1"]\n', '[http]\nbind = ["127.0.0.1:1"]\n\n[server]\nhostname = "a.b"\n'),
        ("", '[server]\nhostname = "a.b"\n'),
    ],
)
def test_a_setting_is_changed_in_its_table(text: str, changed: str) -> None:
    assert with_setting(text, "server", "hostname", "a.b") == changed


def test_without_any_file_one_is_written(tmp_path: Path, resolvers: str) -> None:
    """Where the service looks for it if root asks, and only the service's group may read it."""
    load.SYSTEM_FILE.parent.mkdir()
    chosen = ["--config", "mine.toml"]
    result = ran("--hostname", "mail", *chosen)
    assert result.exit_code == 1
    assert "'mail' is not a full host name" in result.stderr
    assert not (tmp_path / "mine.toml").exists()
    result = ran("--hostname", HOST, "--domain", "a..b", *chosen)
    assert result.exit_code == 1
    assert (tmp_path / "mine.toml").stat().st_mode & 0o777 == 0o640
    made = load.load(tmp_path / "mine.toml", {}, tmp_path)
    assert (made.server.hostname, made.server.data_dir) == (HOST, tmp_path / "appliance-data")
    assert made.delivery.mode == "direct"


def test_refusals(tmp_path: Path, resolvers: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\nhostname = "{HOST}"\ndata_dir = "data"\n{resolvers}')
    for name in ("a", "b"):
        words = ["account", "create", name, "--email", f"{name}@example.org", "--password-stdin"]
        assert CliRunner().invoke(main, words, input="a long password").exit_code == 0
    assert ran().stderr == "Error: there are several accounts: name one with --account\n"
    file.write_text("[server]\nhostnam = 1\n")
    assert "unknown key" in ran().stderr
    os.unlink(file)
    assert ran("--config", str(file), "--domain", "example.com", "--hostname", "-").exit_code == 1


def test_every_answer_can_be_changed_by_a_second_run(tmp_path: Path, resolvers: str) -> None:
    """Name, login, certificate, warm-up; another domain is added. Without options, nothing changes."""
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\nhostname = ""\ndata_dir = "data"\n{resolvers}')
    answer("--hostname", HOST, "--email", "ada@example.org")
    made = answer("--hostname", "mx.example.com", "--email", "Eve@example.org", "--domain", "shop.example")
    assert (made["hostname"], made["login"], made["domain"]) == ("mx.example.com", "eve@example.org", "shop.example")
    assert (made["password"], made["key"]) == (None, None)
    listed = json.loads(CliRunner().invoke(main, ["domain", "list", "main", "--json"]).stdout)["domains"]
    assert [domain["name"] for domain in listed] == ["example.com", "shop.example"]
    answer("--acme", "--warmup")
    settings = load.load(file, {}, tmp_path)
    assert (settings.server.hostname, settings.acme.enabled, settings.warmup.enabled) == ("mx.example.com", True, True)
    assert not settings.acme.http  # only this machine reaches HTTP
    before = file.read_bytes()
    assert answer()["login"] == "eve@example.org"
    assert file.read_bytes() == before
    answer("--no-acme", "--no-warmup")
    assert load.load(file, {}, tmp_path).acme.enabled is load.load(file, {}, tmp_path).warmup.enabled is False
    words = ["account", "create", "other", "--email", "other@example.org", "--password-stdin"]
    assert CliRunner().invoke(main, words, input="a long password").exit_code == 0
    taken = ran("--account", "main", "--email", "other@example.org")
    assert (taken.exit_code, taken.stderr) == (
        1,
        "Error: email: other@example.org already logs in to an account. Choose another address.\n",
    )


@pytest.mark.parametrize("line", [f"hostname = '{HOST}'", f'  hostname="{HOST}"', 'hostname = "mail"'])
def test_a_name_that_stays_is_not_written_again(tmp_path: Path, resolvers: str, line: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\n{line}\ndata_dir = "data"\n{resolvers}')
    before = file.read_bytes()
    answer("--email", "ada@example.org", "--domain", "example.com")
    assert file.read_bytes() == before


def test_the_end_names_the_dashboard_and_the_way_to_it(
    tmp_path: Path, resolvers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On loopback through a tunnel; behind a public URL there is none."""
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\nhostname = "{HOST}"\ndata_dir = "data"\n{resolvers}')
    monkeypatch.setenv("SUDO_USER", "ada")
    text = ran("--email", "ada@example.org", "--domain", "example.com").stdout
    assert "Dashboard  http://127.0.0.1:8080/dashboard\n" in text
    assert f"ssh -L 8080:127.0.0.1:8080 ada@{HOST}, then open http://localhost:8080/dashboard\n" in text
    file.write_text(f'{file.read_text()}[http]\nbase_url = "https://mail.example.com"\n')
    text = ran().stdout
    assert "Dashboard  https://mail.example.com/dashboard\n" in text
    assert "ssh -L" not in text


class Terminal:
    """`appliance setup` on a terminal, and a person who waits for each question."""

    def __init__(self, directory: Path, *words: str) -> None:
        self._ours, theirs = open_terminal()
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "dumb"}
        environment.pop("APPLIANCE_CONFIG", None)
        command = [sys.executable, "-m", "appliance", "setup", *words]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in background jobs
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, text: str) -> None:
        """Read until this is on the screen; the end of the program fails, and so does a long wait for it."""
        deadline = time.monotonic() + 120
        while text not in self.shown and time.monotonic() < deadline:
            if not select.select([self._ours], [], [], 1)[0]:
                continue
            try:
                self.shown += os.read(self._ours, 10_000).decode()
            except OSError:  # it has ended
                break
        assert text in self.shown, self.shown

    def answer(self, question: str, line: str) -> None:
        self.read_until(question)
        os.write(self._ours, f"{line}\n".encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.slow
def test_no_question_waits_for_the_checks(tmp_path: Path) -> None:
    """They begin once the name is known: while DNS is silent, the next question is there; what is found is shown."""
    dns = DnsServer({HOST: {"A": ["192.0.2.25"]}})
    dns.outage = Trouble.SILENCE
    with served(dns) as endpoint:
        settings = (
            '[server]\nhostname = ""\ndata_dir = "data"\n[delivery]\nmode = "direct"\nown_addresses = ["192.0.2.25"]\n'
        )
        (tmp_path / "config.toml").write_text(f'{settings}[dns]\nresolvers = ["{endpoint}"]\n')
        terminal = Terminal(tmp_path, "--no-wait")
        try:
            terminal.answer("Full name of this machine", HOST)
            terminal.answer("Get a certificate", "n")
            terminal.answer("Warm this address up", "n")
            terminal.read_until("Your domain")
            deadline = time.monotonic() + 60
            while not dns.count(HOST, "A") and time.monotonic() < deadline:
                time.sleep(0.02)
            assert dns.count(HOST, "A")  # asked before the person has answered
            dns.outage = None
            terminal.answer("Your domain", "shop.example")
            terminal.answer("Your address", "ada@shop.example")
            terminal.answer("Send a test message", "")
            assert terminal.process.wait(60) == 0
            assert terminal.shown.index("Your domain") < terminal.shown.index(f"{HOST} resolves to 192.0.2.25")
            assert terminal.shown.count(f"{HOST} resolves to 192.0.2.25") == 1
            assert "192.0.2.25 has no reverse name (PTR)" in terminal.shown
            assert "25.2.0.192.in-addr.arpa" in terminal.shown
        finally:
            terminal.close()


@pytest.mark.slow
def test_a_person_is_asked_again_told_what_is_wrong_and_may_stop(tmp_path: Path) -> None:
    """A wrong answer is no end; each record's fault is shown at once; Ctrl-C ends with a sentence."""
    dns = DnsServer({HOST: {"A": ["192.0.2.25"]}, "shop.example": {"TXT": ['"v=spf1 ip4:192.0.2.9 -all"']}})
    with served(dns) as endpoint:
        file = tmp_path / "config.toml"
        file.write_text(f'[server]\nhostname = ""\ndata_dir = "data"\n[dns]\nresolvers = ["{endpoint}"]\n')
        terminal = Terminal(tmp_path)
        try:
            terminal.answer("Full name of this machine", "mail")
            terminal.read_until("'mail' is not a full host name such as mail.example.com. Try again.")
            terminal.shown = terminal.shown.partition("Try again.")[2]
            terminal.answer("Full name of this machine", HOST)
            terminal.answer("Port 80 of this machine must be reachable", "yes")
            terminal.answer("Warm this address up", "yes")
            terminal.answer("Your domain", "a..b")
            terminal.read_until("Try again.")
            terminal.shown = terminal.shown.partition("Try again.")[2]
            terminal.answer("Your domain", "shop.example")
            terminal.answer("Your address", "nobody")
            terminal.read_until("Try again.")
            terminal.shown = terminal.shown.partition("Try again.")[2]
            terminal.answer("Your address", "ada@shop.example")
            terminal.read_until("Waiting for the DNS records")
            terminal.read_until("missing  _dmarc.shop.example  TXT")
            terminal.read_until("wrong    shop.example  TXT: it does not let mail.example.com send")
            terminal.read_until('shop.example. TXT "v=spf1 ip4:192.0.2.9 a:mail.example.com -all"')
            dns.outage = Trouble.SILENCE
            asked, deadline = dns.count("_dmarc.shop.example", "TXT"), time.monotonic() + 60
            while dns.count("_dmarc.shop.example", "TXT") == asked and time.monotonic() < deadline:
                time.sleep(0.02)
            terminal.process.send_signal(signal.SIGINT)  # in the midst of the next check
            terminal.read_until(STOPPED)
            assert terminal.process.wait(60) == 130
            assert re.search(
                r"Dashboard  http\S+/dashboard\s+from your laptop: ssh -L 8080:127.0.0.1:8080 ", terminal.shown
            )
            assert "Aborted" not in terminal.shown
        finally:
            terminal.close()
        settings = load.load(file, {}, tmp_path)
        assert (settings.acme.enabled, settings.warmup.enabled) == (True, True)


def test_records_that_are_wanted_are_in_the_zone_file(tmp_path: Path, resolvers: str) -> None:
    """TLS reports to an address of one's own, and MTA-STS for what this server takes; the same each time."""
    file = tmp_path / "config.toml"
    text = f'[server]\nhostname = "{HOST}"\ndata_dir = "data"\n{resolvers}'
    file.write_text(text)
    assert "_smtp._tls." not in answer()["zone"]
    made = answer("--tls-rpt", "reports@example.org")
    assert '_smtp._tls.example.com. TXT "v=TLSRPTv1; rua=mailto:reports@example.org"' in made["zone"]
    assert [each["value"] for each in made["records"] if "TLSRPT" in each["value"]] == [
        "v=TLSRPTv1; rua=mailto:reports@example.org"
    ]
    assert ran("--mta-sts").stderr == ("Error: --mta-sts needs a listener for inbound mail: set inbound.bind\n")
    assert ran("--tls-rpt", "nobody").exit_code == 1
    file.write_text(f'{text}[inbound]\nbind = ["127.0.0.1:0"]\n')
    zone = answer("--mta-sts", "--tls-rpt", "reports@example.org")["zone"]
    assert zone.count("_smtp._tls.") == 1
    assert "mta-sts.bounces.example.com. CNAME mail.example.com." in zone.splitlines()
    (announced,) = [line for line in zone.splitlines() if line.startswith("_mta-sts.")]
    assert announced.startswith('_mta-sts.bounces.example.com. TXT "v=STSv1; id=')
    policy = "".join(f"{line[4:]}\r\n" for line in zone.splitlines() if line.startswith(";   "))
    assert (read_policy(policy).mode, read_policy(policy).mx) == ("testing", (HOST,))
    assert policy_id((announced.partition('"')[2].rstrip('"'),))
    assert answer("--mta-sts", "--tls-rpt", "reports@example.org")["zone"] == zone
