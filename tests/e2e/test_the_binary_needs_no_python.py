"""The single file, in an empty directory and with an empty environment: starts, answers, and sends by every way."""

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from appliance.config.load import parse
from tests.e2e.delivery.world import world
from tests.e2e.submission.client import final_status, submit
from tests.fakes.mx import FakeMx
from tests.fakes.service_manager import Manager
from tests.packaging.built_binary import binary
from tests.programs import needs
from tests.running_appliance import STOP_TIMEOUT, add_account, appliance
from tests.system.denying import can_deny, denying_writable_code
from tests.system.system_calls import filtered

STATIC = Path(__file__).parents[2] / "appliance" / "web" / "static"
MESSAGE = {"from": "hello@example.com", "to": "user@example.net", "subject": "Packed", "text": "It works."}


@pytest.fixture(scope="module")
def program() -> tuple[str, ...]:
    """The file, run as `env -i` runs it: no PATH, no HOME, no Python anywhere."""
    return ("/usr/bin/env", "-i", str(binary()))


def run(
    program: tuple[str, ...], directory: Path, *arguments: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *arguments], cwd=directory, input=given, capture_output=True, text=True, timeout=60, check=False
    )


@needs("objdump")
def test_it_is_one_file_that_needs_only_the_c_library() -> None:
    path = binary()
    assert path.is_file()
    assert path.stat().st_mode & stat.S_IXUSR
    shown = subprocess.run(["objdump", "-p", str(path)], capture_output=True, text=True, check=True, timeout=60).stdout
    needed = {line.split()[1].partition(".")[0] for line in shown.splitlines() if line.strip().startswith("NEEDED")}
    assert needed <= {"libc", "libdl", "libpthread", "libm", "libz", "ld-linux-aarch64", "ld-linux-x86-64"}


@pytest.mark.both_engines
def test_it_sends_over_http_and_smtp(program: tuple[str, ...], tmp_path: Path) -> None:
    """It takes mail by both ways, under the unit's rule on memory, and its own commands work beside it."""
    with appliance(tmp_path, program=denying_writable_code(*program) if can_deny() else program) as running:
        assert httpx.get(f"{running.url}/healthz", trust_env=False).status_code == 200
        assert httpx.get(f"{running.url}/openapi.json", trust_env=False).json()["openapi"] == "3.1.0"
        with running.client(headers={**running.account.bearer, "Idempotency-Key": "one"}) as client:
            assert client.post("/emails", json=MESSAGE).status_code == 202
        assert running.login()
        assert final_status(running, submit(running)) == "delivered"
        listed = run(program, tmp_path, "account", "list", "--json", "--config", str(running.config_file))
        assert [each["name"] for each in json.loads(listed.stdout)["accounts"]] == ["demo"]
        assert running.complaints() == []
        assert running.terminate() == 0


def test_it_serves_the_dashboard(program: tuple[str, ...], tmp_path: Path) -> None:
    """Pages, every file of the tree that browsers are given, and all stylesheets in one: none was left out."""
    with appliance(tmp_path, program=program) as running, httpx.Client(base_url=running.url, trust_env=False) as client:
        page = client.get("/dashboard/login")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        (base,) = set(re.findall(r"/static/[^/\"]+", page.text))
        files = [path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()]
        assert len(files) > 10
        styles = client.get(f"{base}/dashboard.css").text
        for name in files:
            if name.endswith(".css"):
                assert (STATIC / name).read_text() in styles, name
                continue
            answer = client.get(f"{base}/{name}")
            assert (name, answer.status_code, answer.content) == (name, 200, (STATIC / name).read_bytes())
        assert running.terminate() == 0


@pytest.mark.both_engines
@needs("systemd")
@needs("seccomp")
def test_it_works_under_the_units_filter(program: tuple[str, ...], tmp_path: Path) -> None:
    """Unpacking itself, taking mail by SMTP, reloading and ending take no system call that the unit forbids."""
    with appliance(tmp_path, program=filtered(*program)) as running:
        assert final_status(running, submit(running)) == "delivered"
        assert running.hang_up("reloaded")["changed"] == []
        assert running.complaints() == []
        assert running.terminate() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_commands_of_root_act_as_the_owner_of_the_data() -> None:
    with TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        shutil.copy(binary(), directory / "appliance")
        data = directory / "data"
        data.mkdir(mode=0o700)
        shutil.chown(data, "nobody")
        (directory / "config.toml").write_text(f'[server]\ndata_dir = "{data}"\n')
        packed = ("/usr/bin/env", "-i", str(directory / "appliance"))
        for words in ("account create acme --email a@acme.example --password-stdin", "key create acme", "doctor"):
            ran = run(packed, directory, *words.split(), given="a long password\n")
            assert ran.returncode == 0 or words == "doctor", ran.stderr
            assert "Traceback" not in ran.stderr
        assert {path.owner() for path in data.iterdir()} == {"nobody"}


async def test_it_delivers_to_a_mail_server(program: tuple[str, ...], tmp_path: Path) -> None:
    """The whole way: DNS by packets, a key for DKIM, STARTTLS not offered, and the message at its MX."""
    async with world(tmp_path, program=program) as made:
        server = FakeMx()
        await made.domain("example.net", server)
        message = await made.send("user@example.net")
        await made.final(message)
        assert made.status(message) == "delivered"
        assert await made.terminate() == 0


def test_the_service_manager_deals_with_it_as_with_one_process(tmp_path: Path) -> None:
    """The process that unpacks hands signals on, and its child says that it is ready and alive; nothing is left."""
    packed = binary()  # first: a skipped test leaves no socket behind
    unpacked, manager = tmp_path / "tmp", Manager()
    unpacked.mkdir()
    environment = f"TMPDIR={unpacked} NOTIFY_SOCKET={manager.name} WATCHDOG_USEC=400000 WATCHDOG_PID=$$"
    program = ("sh", "-c", f'exec env -i {environment} "$@"', "sh", str(packed))
    with manager.socket, appliance(tmp_path, program=program) as running:
        assert len(list(unpacked.iterdir())) == 1
        assert [manager.next()[:7], manager.next()[:7]] == ["STATUS=", "READY=1"]
        assert manager.next(skipping="") == "WATCHDOG=1"
        assert running.hang_up("reloaded")["changed"] == []
        assert [manager.next()[:11], manager.next()[:7]] == ["RELOADING=1", "READY=1"]
        assert running.terminate() == 0
        assert manager.next().startswith("STOPPING=1")
        assert list(unpacked.iterdir()) == []


def test_a_first_look_needs_nothing(program: tuple[str, ...], tmp_path: Path) -> None:
    """Its version, a wrong setting in one line, and how to go on, with the file's own path where nothing finds it."""
    told = run(program, tmp_path, "--version")
    assert (told.returncode, told.stdout.split()[0]) == (0, "appliance")
    config = tmp_path / "config.toml"
    config.write_text("[http]\nbnd = 1\n")
    refused = run(program, tmp_path, "serve")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert 'did you mean "bind"?' in json.loads(refused.stderr)["reason"]
    config.write_text('[server]\ndata_dir = "data"\n[http]\nbind = ["127.0.0.1:0"]\n[smtp]\nbind = []\nbind_tls = []\n')
    with subprocess.Popen(
        [*program, "serve"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert '"ready"' in process.stderr.readline()
        process.terminate()
        told_later = process.stderr.read()  # by the same reader, which may have the next lines already
        process.wait(STOP_TIMEOUT)
    assert process.returncode == 0
    (hint,) = [line["hint"] for line in map(json.loads, told_later.splitlines()) if "hint" in line]
    assert hint.startswith(f"There is no account yet. Set everything up: {binary()} setup ")


@needs("systemd")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install below another root")
def test_it_installs_itself(program: tuple[str, ...], tmp_path: Path) -> None:
    """Below another root it copies itself and brings its unit, whose child may speak to systemd; and takes it back."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    with_path = (program[0], "-i", f"PATH={os.environ['PATH']}", program[2])
    ran = run(with_path, tmp_path, "install", "--root", str(root), "--hostname", "mail.example.com")
    assert ran.returncode == 0, ran.stderr
    installed = root / "usr/local/bin/appliance"
    assert installed.read_bytes() == binary().read_bytes()
    assert "NotifyAccess=all" in (root / "etc/systemd/system/appliance.service").read_text()
    config = root / "etc/appliance/config.toml"
    assert parse(config.read_text(), config).server.hostname == "mail.example.com"
    ran = run((with_path[0], *with_path[1:3], str(installed)), tmp_path, "uninstall", "--root", str(root))
    assert ran.returncode == 0, ran.stderr
    assert not installed.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_runs_it_from_a_closed_home_directory() -> None:
    """Its modules are loaded after root became the owner of the data directory, who may not enter that directory."""
    with TemporaryDirectory(dir="/tmp") as made:
        directory = Path(made)
        directory.chmod(0o755)
        add_account(directory / "data", "demo")
        (directory / "config.toml").write_text('[server]\ndata_dir = "data"\n')
        for path in (directory / "data", *(directory / "data").iterdir()):
            os.chown(path, 65534, 65534)
        (directory / "home").mkdir(mode=0o700)
        program = shutil.copy(binary(), directory / "home" / "appliance")
        for words in (("upgrade", "--check"), ("account", "list"), ("domain", "list")):
            ran = run((str(program),), directory / "home", *words, "--config", str(directory / "config.toml"))
            assert (ran.returncode, ran.stderr) == (0, ""), words
