"""Every block of README.md and `docs/` is run, or says in a comment before it why not (see documents.py).

Here are all but the commands of an installation, which are in test_shell_blocks.py. The requests to the API go, by
curl, to one running appliance.
"""

import json
import os
import re
import smtplib
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from appliance.config.load import parse
from appliance.model.accounts import Role
from appliance.system.service import CONFIG_FILE, file
from tests import engines
from tests.docs.documents import BLOCKS, DOCUMENTS, ROOT, Block, document_name, read_blocks
from tests.e2e.submission.client import smtp
from tests.postgresql_server import postgresql
from tests.programs import needs, require
from tests.running_appliance import PASSWORD_HASH, Running, add_account, appliance

OUTPUT = {"text", "http", "mermaid"}  # what is shown, not run
SHELLS = {"", "sh", "bash", "zsh", "fish"}
CHECKED = {"json", "toml", "yaml", "ini", "sql"}  # by what reads it
API_DOCUMENTS = ("README.md", "docs/README.md", "api.md", "unsubscribe.md", "webhooks.md", "webhook-formats.md")
HTTPS = 'base_url = "https://mail.example.com"'  # which links to unsubscribe need
SHOWN_EMAIL = "owner@example.com"
SHOWN_ID = re.compile(r"msg_[0-9a-f]{32}")
PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(?:sudo |echo .* \| )?(?:\./)?([\w.-]+)(?: |$)")
KNOWN_PROGRAMS = {"appliance", "curl", "sh", "journalctl", "systemctl", "sudo", "swaks", "apt", "psql"}


def is_shell(block: Block) -> bool:
    return block.language in SHELLS and not is_request(block) and not block.mark.startswith(("not run", "run by"))


def is_request(block: Block) -> bool:
    return (
        block.language == "sh"
        and block.document.startswith((*API_DOCUMENTS, "api/"))
        and block.text.lstrip("# ").count("curl ") > 0
    )


def is_run_here(block: Block) -> bool:
    return block.language in CHECKED or is_request(block) or is_snippet(block)


def is_snippet(block: Block) -> bool:
    return block.language == "python" and block.text.startswith("client.sendmail(")


def of(languages: set[str]) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and not block.mark]


def cases(found: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", found, ids=lambda block: block.name)


# ---- every block has a way


@cases(BLOCKS)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    if block.mark.startswith("run by "):
        assert (ROOT / block.mark.removeprefix("run by ")).is_file()
    elif block.mark.startswith("not run: "):
        assert len(block.mark) > 20
    elif block.language in OUTPUT:
        first = PROGRAM.match(block.text)
        assert first is None or first[1] not in KNOWN_PROGRAMS, "these are commands: let them be run"
    else:
        assert is_run_here(block) or is_shell(block), f"{block.name}: no test runs it, and no comment says why"


def test_no_mark_is_in_vain() -> None:
    for path in DOCUMENTS:
        meant = re.findall(r"<!-- (?:not )?run\b.*", path.read_text())
        name = document_name(path)
        assert len(meant) == len([block for block in BLOCKS if block.document == name and block.mark]), path


def test_a_block_that_is_neither_is_found() -> None:
    text = "1. a\n\n   <!-- not run: it cannot be -->\n   ```sh\n   ls\n   ```\n\n```cobol\nx\n```\n```\nunclosed"
    marked, unknown, open_ended = read_blocks("x.md", text)
    assert (marked.text, marked.mark, marked.line) == ("ls\n", "not run: it cannot be", 4)
    assert (open_ended.language, open_ended.text) == ("", "unclosed\n")
    with pytest.raises(AssertionError, match="no test runs it"):
        test_every_block_is_run_or_says_why_not(unknown)
    with pytest.raises(AssertionError, match="these are commands"):
        test_every_block_is_run_or_says_why_not(replace(unknown, language="text", text="sudo appliance setup\n"))


@cases([block for block in BLOCKS if block.mark and "tests.bench." in block.text])
def test_benchmarks_that_are_named_exist(block: Block) -> None:
    for module in re.findall(r"-m tests\.bench\.(\w+)", block.text):
        assert (ROOT / "tests" / "bench" / f"{module}.py").is_file()


# ---- data and settings


@cases(of({"json"}))
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


@cases(of({"toml"}))
def test_settings_can_be_used(block: Block) -> None:
    tomllib.loads(block.text)
    named = block.text if "[server]" in block.text else f'[server]\nhostname = "mail.example.com"\n{block.text}'
    assert parse(named, CONFIG_FILE).server.hostname.endswith(".example.com")


@needs("promtool")
@cases(of({"yaml"}))
def test_prometheus_takes_it(block: Block, tmp_path: Path) -> None:
    (tmp_path / "file.yml").write_text(block.text)
    kind = "rules" if block.text.startswith("groups:") else "config"
    checked = subprocess.run(
        ["promtool", "check", kind, str(tmp_path / "file.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr + checked.stdout
    assert "SUCCESS" in checked.stdout


@needs("systemd")
@cases(of({"ini"}))
def test_systemd_takes_it(block: Block, tmp_path: Path) -> None:
    unit = re.sub(r"^(ExecStart)=\S+", r"\1=/bin/true", file("appliance.service"), flags=re.MULTILINE)
    (tmp_path / "appliance.service").write_text(unit)
    (tmp_path / "appliance.service.d").mkdir()
    (tmp_path / "appliance.service.d" / "override.conf").write_text(block.text)
    command = [require("systemd"), "verify", "--man=no", "--recursive-errors=no", str(tmp_path / "appliance.service")]
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert not re.search(r"override\.conf|Unknown", checked.stderr), checked.stderr


@needs("postgresql")
@cases(of({"sql"}))
def test_postgresql_takes_it(block: Block) -> None:
    with postgresql() as server:
        ran = subprocess.run(
            ["psql", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", server.url()],
            input=block.text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr


# ---- the API


@dataclass(frozen=True, slots=True)
class Api:
    """A running server, and what its documents call by variables."""

    running: Running
    message: str

    def variables(self) -> dict[str, str]:
        async def reset() -> None:
            async with engines.beside(self.running.data_dir) as store:
                user = await store.accounts.user_by_email(self.running.account.email)
                assert user is not None
                await store.accounts.set_password(user.id, PASSWORD_HASH)

        trio.run(reset)
        token = self.running.login()["Authorization"].removeprefix("Bearer ")
        key = self.running.account.full_key
        return {"URL": self.running.url, "KEY": key, "TOKEN": token, "ID": self.message}

    def send(self) -> httpx.Response:
        body = {"from": "shop@example.com", "to": "ada@example.net", "subject": "Your order", "text": "It is here."}
        with self.running.client(headers={**self.running.account.bearer, "Idempotency-Key": "first"}) as client:
            return client.post("/emails", json=body)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("api")
    account = add_account(directory / "data", "owner", role=Role.ADMIN)
    with appliance(directory, account=account, http=HTTPS) as running:
        yield Api(running, Api(running, "").send().json()["id"])


@needs("curl")
@cases([block for block in of({"sh"}) if is_request(block)])
def test_the_api_takes_it(block: Block, api: Api) -> None:
    variables = api.variables()
    with api.running.client(headers={"Authorization": f"Bearer {variables['TOKEN']}"}) as client:
        prepare(block, client)
    text = SHOWN_ID.sub(api.message, block.text).replace(SHOWN_EMAIL, api.running.account.email)
    text = text.replace("http://127.0.0.1:8080", api.running.url)
    text = text.replace('{"domain": "example.com"}', '{"domain": "new.example"}')  # the other is there, to send from
    script = f'curl() {{ command curl --fail-with-body -sS -m 60 "$@"; }}\n{text}'
    environment = {**os.environ, **variables}
    ran = subprocess.run(
        ["sh", "-e", "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith(("{", "message_id,"))  # JSON or CSV


def prepare(block: Block, client: httpx.Client) -> None:
    if "after=order-shipped" in block.text:
        client.put("/v1/templates/order-shipped", json={"subject": "s", "text": "t"}).raise_for_status()
    if "/v1/webhook/ping" in block.text:
        client.put("/v1/webhook", json={"url": "https://hooks.example.net/mail"}).raise_for_status()


@cases([block for block in of({"python"}) if is_snippet(block)])
def test_a_snippet_with_smtplib_sends(block: Block, api: Api) -> None:
    message = b"From: hello@example.com\r\nTo: you@example.net\r\nSubject: Hello\r\n\r\nIt works.\r\n"
    with smtp(api.running) as client:
        assert isinstance(client, smtplib.SMTP)
        names: dict[str, Any] = {"client": client, "message": message}
        exec(compile(block.text, block.name, "exec"), names)  # our own document
