"""Whatever keeps a user from the data directory is told in one line with the file and the fix, by every command."""

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from appliance.cli import leaves, main
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.store import FILE_NAME as DATABASE
from appliance.system.data_directory import LOCK_FILE
from tests import running_appliance
from tests.fork_client import piped
from tests.fork_server import PRELUDE
from tests.running_appliance import STOP_TIMEOUT, add_account

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, and mount"),
    pytest.mark.sqlite_only,
]

OTHER_UID = pwd.getpwnam("nobody").pw_uid
NAMELESS_UID = 54321
SETTINGS = """
[server]
hostname = "mail.example.com"
data_dir = "{data_dir}"
[http]
bind = ["127.0.0.1:0"]
[smtp]
bind = []
bind_tls = []
[delivery]
mode = "sandbox"
"""
# Every command that opens the data directory, with words it takes after |.
OPENING = """
serve, account list, account show | demo, account suspend | demo, account resume | demo, account credit | demo 5,
account cap | demo 5, account sources | demo, account role | demo admin, account remove | demo --yes demo,
user list | demo,
user add | --account demo ann@example.net viewer, user role | demo ann@example.net viewer,
user remove | demo ann@example.net, user reset-password | ann@example.net, user reset-totp | ann@example.net,
domain add | demo example.org, domain list | demo, domain remove | demo example.com,
domain records | demo example.com, domain rotate | demo example.com, domain verify | demo example.com,
credential create | demo, credential list | demo, credential remove | demo name, audit | demo,
key create | demo --scope full, key list | demo, key remove | demo key_1, key roll | demo key_1, feedback list,
feedback show | fbm_1,
suppression list | demo, suppression add | demo ada@example.net, suppression remove | demo ada@example.net,
suppression import | demo /dev/null, suppression export | demo, webhook show | demo,
webhook set | demo https://1.1.1.1/, webhook remove | demo, webhook ping | demo, webhook replay | demo whd_1,
template list | demo, template show | demo welcome, template pull | demo ., template push | demo mounted,
template import | demo --from postmark templates.json,
template remove | demo welcome, queue show, queue retry | --pool google, queue cancel | msg_1,
queue reschedule | msg_1 2h,
queue pause | google, queue resume | google, message list, request list, explain | msg_1,
setup | --hostname mail.example.com --domain example.com, send-test | demo --to ada@example.net, pause, resume,
backup | saved.tar, restore | saved.tar --force, store copy | --to-sqlite elsewhere, upgrade, doctor,
inbound add | --account demo example.com, inbound list | --account demo, inbound remove | --account demo example.com,
status, attention, ramp show, mcp
"""
COMMANDS = {
    name.strip(): tuple(words.split()) for name, _, words in (each.partition("|") for each in OPENING.split(","))
}
# These ask for a password or look at delivery.mode before they open anything.
ASK_FIRST = {"account create", "account password", "ramp reset", "ramp set", "ramp auto"}
ELSEWHERE = {"verify", "install", "uninstall", "completion", "health", "dev"}  # these open none, nor do those:
ELSEWHERE |= {"node list", "node drain", "version", "help", "config path", "config check", "config show"}


@contextmanager
def installation(owner: int) -> Iterator[Path]:
    """A directory that another user can reach, with settings and a data directory of this owner."""
    with TemporaryDirectory(dir="/tmp") as made:
        directory = Path(made)
        directory.chmod(0o755)
        settle_on(directory, "data")
        (directory / "mounted").mkdir()
        (directory / "templates.json").write_text("[]")
        add_account(directory / "data", "demo")
        load_or_create(directory / "data")
        (directory / "data" / LOCK_FILE).touch(0o600)
        for path in (directory, directory / "data", *(directory / "data").iterdir()):
            os.chown(path, owner, owner)
        try:
            yield directory
        finally:
            subprocess.run(["umount", str(directory / "mounted")], capture_output=True)


def settle_on(directory: Path, data_dir: str) -> None:
    (directory / "config.toml").write_text(SETTINGS.format(data_dir=data_dir))


def ran(directory: Path, user: int, *words: str) -> tuple[int, str]:
    """The exit code of a command as this user, and what it wrote to stderr."""
    code, _, errors = running_appliance.ran(directory / "config.toml", *words, directory=directory, user=user)
    return code, errors


ONE_BY_ONE = """
import json, os
from click.testing import CliRunner
from appliance.cli import main
for words in json.loads(os.environ["COMMANDS"]):
    ran = CliRunner().invoke(main, words)
    print(json.dumps((ran.exit_code, ran.stderr)))
raise SystemExit
"""


def ran_in_one_process(directory: Path, user: int, commands: Iterable[str]) -> list[tuple[int, str]]:
    words = [[*name.split(), *COMMANDS[name], "--config", str(directory / "config.toml")] for name in commands]
    environment = {**os.environ, PRELUDE: ONE_BY_ONE, "COMMANDS": json.dumps(words)}
    process = piped(directory=directory, environment=environment, user=user)
    output, errors = process.communicate(STOP_TIMEOUT)
    assert errors == ""
    return [(code, text) for code, text in map(json.loads, output.splitlines())]


def chmod(name: str, mode: int) -> Callable[[Path], None]:
    return lambda directory: (directory / "data" / name).chmod(mode)


def of_root(name: str, mode: int = 0o600) -> Callable[[Path], None]:
    def act(directory: Path) -> None:
        path = directory / "data" / name
        if not path.exists():
            path.touch()
        path.chmod(mode)
        os.chown(path, 0, 0)

    return act


def replaced_by_a_file(directory: Path) -> None:
    shutil.rmtree(directory / "data")
    (directory / "data").touch()


def link_to_nowhere(directory: Path) -> None:
    shutil.rmtree(directory / "data")
    (directory / "data").symlink_to("/nowhere/at/all")


def below_a_file(directory: Path) -> None:
    (directory / "file").touch()
    settle_on(directory, "file/data")


def read_only(directory: Path) -> None:
    """The whole installation on a file system that is mounted read-only."""
    mounted = directory / "mounted"
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    owner = (directory / "data").stat().st_uid
    shutil.copytree(directory / "data", mounted / "data")
    for path in (mounted / "data", *(mounted / "data").iterdir()):
        os.chown(path, owner, owner)
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    settle_on(directory, "mounted/data")


FOR_ANY_USER = [
    (replaced_by_a_file, "{data} is a file, but server.data_dir must be a directory"),
    (link_to_nowhere, "{data} is a link to /nowhere/at/all, which does not exist: repair the link"),
    (read_only, "{directory}/mounted/data is on a read-only file system: mount it writable"),
]
FOR_NO_ROOT = [
    (chmod("", 0), "{data}: permission denied, its mode is 0000: `chmod 700 {data}`"),
    (chmod("", 0o500), "{data}: permission denied, its mode is 0500: `chmod 700 {data}`"),
    (of_root("", 0o700), "{data}: permission denied, it belongs to root and this runs as nobody: run this as root, or"),
    (chmod(DATABASE, 0), "{data}/appliance.db: permission denied, its mode is 0000: `chmod 600 {data}/appliance.db`"),
    (of_root(DATABASE), "{data}/appliance.db: permission denied, it belongs to root and this runs as nobody: `chown"),
    (of_root(f"{DATABASE}-wal"), "{data}/appliance.db-wal: permission denied, it belongs to root"),
    (of_root(f"{DATABASE}-shm", 0o400), "`chown nobody {data}/appliance.db-shm`, as root"),
    (of_root(KEY_FILE, 0o400), "{data}/appliance.key: permission denied, it belongs to root"),
    (chmod(KEY_FILE, 0), "`chmod 400 {data}/appliance.key`"),
    (of_root(LOCK_FILE), "{data}/appliance.lock: permission denied, it belongs to root"),
]


def check_refusal(directory: Path, user: int, expected: str, command: str = "account list") -> None:
    check_result(ran(directory, user, *command.split(), *COMMANDS[command]), directory, expected, command)


def check_result(result: tuple[int, str], directory: Path, expected: str, command: str) -> None:
    """The command ended with 1 and one line that has the file and the fix."""
    code, errors = result
    assert (code, errors.count("\n")) == (1, 1), (command, errors)
    if command == "serve":  # its stderr is a log
        errors = f"Error: {json.loads(errors)['reason']}\n"
    assert errors.startswith("Error: ")
    assert expected.format(data=directory / "data", directory=directory) in errors, command


def test_every_command_looks_first() -> None:
    """None that opens the data directory is left out, now or when it is added later."""
    assert {name for name, _ in leaves(main)} == COMMANDS.keys() | ASK_FIRST | ELSEWHERE
    with installation(OTHER_UID) as directory:
        assert ran(directory, OTHER_UID, "backup", "saved.tar") == (0, "")
        spoil, expected = FOR_NO_ROOT[0]
        spoil(directory)
        check_refusal(directory, OTHER_UID, expected, "serve")
        commands = [name for name in COMMANDS if name != "serve"]
        results = ran_in_one_process(directory, OTHER_UID, commands)
        for command, result in zip(commands, results, strict=True):
            check_result(result, directory, expected, command)


@pytest.mark.parametrize(("spoil", "expected"), [*FOR_NO_ROOT[1:], *FOR_ANY_USER])
def test_for_an_ordinary_user(spoil: Callable[[Path], None], expected: str) -> None:
    with installation(OTHER_UID) as directory:
        spoil(directory)
        check_refusal(directory, OTHER_UID, expected)


@pytest.mark.parametrize(("spoil", "expected"), FOR_ANY_USER)
def test_for_root(spoil: Callable[[Path], None], expected: str) -> None:
    with installation(0) as directory:
        spoil(directory)
        check_refusal(directory, 0, expected)


def test_a_command_of_root_acts_as_the_owner() -> None:
    """The server's user can open all that root's commands leave; only the server itself is not started as root.

    What they read may lie where only root may go; what they write is written as that user.
    """
    with installation(OTHER_UID) as directory:
        safe = directory / "safe"
        safe.mkdir(mode=0o700)
        user = pwd.getpwuid(OTHER_UID).pw_name
        where = f"{user} may not write to {safe}; name a file in a directory of {user}"
        denied = f"Error: {safe}/saved.tar cannot be written: {where}\n"
        assert ran(directory, 0, "backup", str(safe / "saved.tar")) == (1, denied)
        (safe / "addresses").write_text("ada@example.net\n")
        (directory / "data" / KEY_FILE).unlink()
        assert ran(directory, 0, "backup", "saved.tar") == (0, "")
        saved = directory / "saved.tar"
        assert (saved.stat().st_uid, saved.stat().st_mode & 0o777) == (OTHER_UID, 0o600)
        os.chown(saved, 0, 0)
        saved = saved.rename(safe / "saved.tar")
        for words in (
            ("domain", "add", "demo", "example.org"),
            ("account", "list"),
            ("restore", str(saved), "--force"),
            ("key", "create", "demo"),
            ("template", "pull", "templates"),
            ("template", "push", str(safe)),
            ("suppressions", "import", str(safe / "addresses")),
        ):
            assert ran(directory, 0, *words) == (0, "")
            owners = {path: path.stat().st_uid for path in (directory / "data").rglob("*")}
            assert set(owners.values()) == {OTHER_UID}, (words, owners)
        assert ran(directory, OTHER_UID, "domain", "list", "demo") == (0, "")
        start = f"runuser -u nobody -- appliance serve --config {directory}/config.toml"
        told = f"{{data}} belongs to nobody: start the server as that user, with `{start}`"
        check_refusal(directory, 0, told, "serve")


def test_a_user_without_a_name_gets_commands_that_work() -> None:
    """`runuser` and `install -o` fail for `user 54321`."""
    with installation(NAMELESS_UID) as directory:
        data = directory / "data"
        start = f"setpriv --reuid {NAMELESS_UID} --regid {data.stat().st_gid} --clear-groups"
        command = f"{start} appliance serve --config {directory}/config.toml"
        told = f"{{data}} belongs to user {NAMELESS_UID}: start the server as that user, with `{command}`"
        check_refusal(directory, 0, told, "serve")
        shown = subprocess.run([*start.split(), "id", "-u"], capture_output=True, text=True, check=True)
        assert shown.stdout == f"{NAMELESS_UID}\n"
        shutil.rmtree(data)
        os.chown(directory, 0, 0)
        made = f"install -d -m 700 -o {NAMELESS_UID} {data}"
        check_refusal(directory, NAMELESS_UID, f"`{made}`, as root", "serve")
        subprocess.run(made.split(), check=True)
        assert data.stat().st_uid == NAMELESS_UID


@pytest.mark.parametrize("command", ["serve", "restore"])
def test_a_directory_that_cannot_be_made(command: str) -> None:
    """The line says what root has to run, or which setting to change; a list is just empty."""
    with installation(OTHER_UID) as directory:
        assert ran(directory, OTHER_UID, "backup", "saved.tar") == (0, "")
        shutil.rmtree(directory / "data")
        os.chown(directory, 0, 0)
        made = f"`install -d -m 700 -o nobody {directory}/data`, as root"
        check_refusal(directory, OTHER_UID, made, command)
        assert ran(directory, OTHER_UID, "account", "list") == (0, "")
        below_a_file(directory)
        check_refusal(directory, OTHER_UID, f"{directory}/file is not a directory; change server.data_dir", command)
