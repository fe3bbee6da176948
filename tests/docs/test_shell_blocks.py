"""The commands of the documents, in real shells: as root from its home, and as the service's user.

An installation with the account of the documents is made once, and put back before each script. In a section of
docs/cli.md a block is a list of examples, of which each line is a script; elsewhere a block is one. No server runs:
what needs one is marked, and run by another test.
"""

import json
import os
import pwd
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trio

from appliance.environment import Environment
from appliance.store import open_store
from tests.docs.documents import BLOCKS, USER, Block, Installed, installed, own
from tests.docs.test_blocks import is_shell
from tests.fakes.dns import DnsServer, zone_text
from tests.fakes.dns_thread import served
from tests.programs import require

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the service's user")

OUTSIDE = re.compile(r"(?<![\w.~/-])/(?:etc|var|opt|usr|mnt|srv|root|home|boot)/\S*")
AS_USER_TOO = re.compile(r"account create|template p|import|export|backup|verify /|restore|config |completion")  # files
AS_USER_ONLY = re.compile(r"template pull")  # it writes where root stands, which is not the service's
PASSWORD_LINE = "a long password\n"
MESSAGE_ID = r"msg_[0-9a-f]{32}"
SETTINGS = '[delivery]\nmode = "sandbox"\n[limits]\nmin_free_disk = "0"\n'
# What has to be done before a command, besides the account: by a part of it, in the order here.
BEFORE = {
    "inbound remove": "inbound add acme in.acme.example",
    "import --account other": "account create other --email owner@other.example --password-stdin",
    "appliance resume": "pause",
    "queue resume google": "queue pause google",
}


@dataclass(frozen=True, slots=True)
class Script:
    """Commands of a block, and who runs them."""

    name: str
    block: Block
    text: str
    as_root: bool


def scripts() -> Iterator[Script]:
    for block in filter(is_shell, BLOCKS):
        parts = {block.name: block.text}
        if block.document == "cli.md" and block.heading.startswith("`appliance ") and block.language in ("", "sh"):
            lines = enumerate(block.text.splitlines(), block.line + 1)
            parts = {f"{block.document}:{number}": line for number, line in lines}
        for name, text in parts.items():
            if not AS_USER_ONLY.search(text):
                yield Script(f"{name}-root", block, text, as_root=True)
            if AS_USER_TOO.search(text) and "sudo " not in text:
                yield Script(f"{name}-user", block, text, as_root=False)


@dataclass(slots=True)
class Machine:
    """An installation, its data directory as it was made, and what the documents' words stand for on it."""

    service: Installed
    dns: DnsServer
    words: dict[str, str] = field(default_factory=dict)
    invitation: str = ""  # of the user ann

    @property
    def kept(self) -> Path:
        return self.service.directory / "kept"

    @property
    def backup(self) -> Path:
        return self.service.directory / "var-backups-appliance" / "2026-11-15.tar"

    def ask(self, command: str, stdin: str = PASSWORD_LINE) -> dict[str, str]:
        ran = self.service.shell(f"appliance {command} --json", stdin=stdin)
        assert ran.returncode == 0, (command, ran.stderr)
        answer: dict[str, str] = json.loads(ran.stdout)
        return answer

    def make(self) -> None:
        service = self.service
        for place in ("var-backups-appliance", "etc-bash_completion.d", "etc-appliance", "own"):
            (service.directory / place).mkdir()
        write_files(service.home)
        write_files(service.directory / "own")
        own(service.directory / "own")
        own(self.backup.parent)
        self.ask("account create acme --email owner@acme.example --password-stdin --credits 1000")
        self.ask("domain add acme acme.example")
        shown = service.shell("appliance domain records acme acme.example --json")
        for record in json.loads(shown.stdout)["records"]:
            self.dns.zone[record["name"]] = {record["type"]: [zone_text(record["value"])]}
        link = self.ask("user invite acme ann@acme.example --role developer")["link"]
        self.invitation = parse_qs(urlsplit(link).fragment)["token"][0]
        self.ask("suppressions add acme ada@example.net --reason bounced")
        self.ask("webhook set acme https://hooks.acme.example/mail")
        self.ask("template push acme templates")
        key = self.ask("key create acme --scope full")["id"]
        message = self.ask("send-test acme you@example.net")["id"]
        self.words = {
            r"smtp_[0-9a-z]{26}": self.ask("credential create acme")["username"],
            r"key_[0-9a-z]{26}": key,
            r"ma_test_…": self.ask("key create acme --test")["key"],
            MESSAGE_ID: message,
        }
        shutil.copytree(service.data_dir, self.kept)

    def put_back(self, script: Script) -> None:
        directory = self.service.data_dir
        shutil.rmtree(directory)
        if "account create acme" in script.text or "appliance restore" in script.text:
            directory.mkdir()
        else:
            shutil.copytree(self.kept, directory)
        if re.search(r"user (role|remove|reset)", script.text):
            trio.run(self._accept)
        directory.chmod(0o700)
        own(directory)
        shutil.rmtree(self.service.directory / "appliance-data", ignore_errors=True)
        self.backup.unlink(missing_ok=True)
        if "restore" in script.text or "appliance verify" in script.text:
            kept = self.service.directory / "backup.toml"
            kept.write_text(f'[server]\ndata_dir = "{self.kept}"\n')
            own(self.kept)
            self.ask(f"backup {self.backup} --config {kept}")

    async def _accept(self) -> None:
        async with open_store(self.service.data_dir, Environment(), inline=True) as store:
            await store.people.use_link(self.invitation, "a hash")
            ann = await store.accounts.user_by_email("ann@acme.example")
            assert ann is not None
            await store.second_factors.begin(ann.id, b"sealed")
            await store.second_factors.confirm(ann.id, b"sealed", 7, ["a", "b"])

    def text(self, text: str) -> str:
        directory = self.service.directory
        for shown, here in self.words.items():
            text = re.sub(shown, here, text)
        text = text.replace("-o appliance -g appliance", f"-o {USER}").replace("-g appliance", "-g nogroup")
        for place in ("/var/backups/appliance", "/etc/bash_completion.d", "/etc/appliance"):
            text = text.replace(place, str(directory / place.strip("/").replace("/", "-")))
        outside = OUTSIDE.findall(text.replace(str(directory), "."))
        assert not outside, f"a test must not touch {outside}: mark the block, or let the test replace the path"
        return text


def write_files(directory: Path) -> None:
    template = directory / "templates" / "welcome"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Welcome\n")
    (template / "text.txt").write_text("Hello {{name}}!\n")
    (directory / "password.txt").write_text(PASSWORD_LINE)
    (directory / "bounced.csv").write_text("email,reason\nada@example.net,hard bounce\n")
    (directory / "templates.json").write_text(
        '{"Alias": "hello", "Subject": "Hi", "TextBody": "Hello", "HtmlBody": null}'
    )
    (directory / "new.toml").write_text('[server]\nhostname = "mail.example.com"\n')
    (directory / ".config" / "fish" / "completions").mkdir(parents=True)
    for name in ("fullchain.pem", "privkey.pem"):
        (directory / name).write_text("as if\n")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    zone = {"mail.example.com": {"A": ["192.0.2.1"]}, "hooks.acme.example": {"A": ["93.184.216.34"]}}
    dns = DnsServer(zone)
    with served(dns) as endpoint, installed(str(endpoint), SETTINGS) as service:
        made = Machine(service, dns)
        made.make()
        log = service.directory / "log"
        steps = (
            {"event": event, "ts": "now", "message_id": made.words[MESSAGE_ID]} for event in ("accepted", "bounced")
        )
        log.write_text("".join(f"{json.dumps(each)}\n" for each in steps))
        service.add_program("journalctl", f"#!/bin/sh\nexec cat {log}\n")
        yield made


@pytest.mark.parametrize("script", list(scripts()), ids=lambda script: script.name)
def test_the_commands_work(script: Script, machine: Machine) -> None:
    service = machine.service
    shell = script.block.language if script.block.language in ("bash", "zsh", "fish") else "sh"
    for program in {shell, *re.findall(r"\b(jq)\b", script.text)} - {"sh", "bash"}:
        require(program)
    text = machine.text(script.text)
    machine.put_back(script)
    for part, command in BEFORE.items():
        if part in text:
            machine.ask(command)
    stdin = PASSWORD_LINE if "--password-stdin" in text else ""
    if not script.as_root:
        service.user = pwd.getpwnam(USER).pw_uid
    try:
        ran = service.shell(text, None if script.as_root else service.directory / "own", stdin, shell)
    finally:
        service.user = None
    may_fail = script.block.mark.startswith("run, may exit with 1")
    assert ran.returncode in ((0, 1) if may_fail else (0,)), ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Usage:" not in ran.stderr
    if "appliance " in text:
        assert {each.owner() for each in service.data_dir.iterdir()} <= {USER}
