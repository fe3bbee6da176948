"""The container image: what its definition must say, and where an engine is here, that the image runs."""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.documents import BLOCKS
from tests.packaging.built_binary import ROOT
from tests.packaging.container_image import FILE, TAG, built_image, needed_here, output

OWNER = 6587
DEADLINE = 120.0  # seconds
SETTINGS = '[server]\nhostname = "mail.example.com"\n[delivery]\nmode = "sandbox"\n[dns]\nresolvers = ["127.0.0.1:9"]\n'


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, rest) for name, rest in found]


def given(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def test_it_is_made_of_known_instructions() -> None:
    known = {"ARG", "FROM", "RUN", "LABEL", "COPY", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {name for name, _ in instructions()} <= known | {"ENTRYPOINT", "CMD"}
    assert [name for name, _ in instructions()][:4] == ["ARG", "FROM", "ARG", "RUN"]
    assert given("FROM") == ["${BASE}"]


@pytest.mark.parametrize(
    ("base", "accepted"),
    [("debian:bookworm-slim", False), ("debian", False), ("", False), (f"debian@sha256:{'0' * 64}", True)],
)
def test_the_base_is_named_by_its_digest(base: str, accepted: bool) -> None:
    assert given("ARG") == ["BASE", "BASE"]
    check = given("RUN")[0]
    ran = subprocess.run(["sh", "-c", check], env={"BASE": base}, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) is accepted
    assert accepted or "digest" in ran.stderr
    assert 'org.opencontainers.image.base.name="${BASE}"' in given("LABEL")


def test_nothing_is_fetched_but_debian_packages() -> None:
    assert "://" not in FILE.read_text()
    assert given("ADD") == []
    for command in given("RUN"):
        assert not re.search(r"\b(curl|wget|sudo|pip)\b", command)
        if "apt-get install" in command:
            assert "--no-install-recommends" in command
            assert "rm -rf /var/lib/apt/lists/*" in command


def test_it_runs_without_rights() -> None:
    (user,) = given("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert names.index("USER") > max(number for number, name in enumerate(names) if name == "RUN")
    assert all(int(port) > 1023 for port in " ".join(given("EXPOSE")).split())


def test_it_keeps_all_state_in_one_volume() -> None:
    assert given("VOLUME") == ["/var/lib/appliance"]
    assert given("STOPSIGNAL") == ["SIGTERM"]
    (check,) = given("HEALTHCHECK")
    assert check.endswith('CMD ["/usr/bin/appliance", "health"]')
    assert given("ENTRYPOINT") == ['["/usr/bin/appliance"]']
    assert given("CMD") == ['["serve"]']


def test_what_is_copied_is_built() -> None:
    assert given("COPY") == ["appliance.d /usr/lib/mail-appliance"]
    assert "$root/dist/appliance.d" in (ROOT / "packaging/build-binary").read_text()


def test_its_settings_are_the_packages_on_other_addresses() -> None:
    (command,) = [each for each in given("RUN") if "sed " in each]
    words = shlex.split(command)
    settings = Path(ROOT / "packaging/systemd/config.toml").read_text()
    wanted = [words[number + 1] for number, word in enumerate(words) if word == "-e"]
    assert len(wanted) == 5
    for expression in wanted:
        _, old, new, _ = expression.split("/")
        assert settings.count(old) == 1
        settings = settings.replace(old, new)
    assert settings.count("0.0.0.0:") == 4  # one in a comment
    assert "systemctl" not in settings


def test_it_says_how_it_is_used() -> None:
    shown = re.findall(r"^#   (.+\n)", FILE.read_text(), flags=re.MULTILINE)
    (block,) = [each for each in BLOCKS if each.document == "install.md" and "podman run" in each.text]
    assert "".join(shown) == block.text


# ---- where an engine is here


@dataclass(frozen=True)
class Container:
    """One that runs."""

    engine: tuple[str, ...]
    name: str

    def run(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [*self.engine, "exec", "-i", self.name, *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def image() -> tuple[str, ...]:
    return built_image()


@contextmanager
def started(image: tuple[str, ...], volume: str) -> Iterator[Container]:
    limits = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")
    options = ("--detach", *limits, *needed_here(image))
    name = output(*image, "run", *options, "--volume", f"{volume}:/var/lib/appliance", TAG)
    container, deadline = Container(image, name), time.monotonic() + DEADLINE
    try:
        while container.run("appliance", "health").returncode != 0:
            assert time.monotonic() < deadline, output(*image, "logs", name)
            time.sleep(0.2)
        yield container
    finally:
        subprocess.run([*image, "rm", "--force", name], capture_output=True, timeout=60, check=False)


@pytest.fixture
def container(image: tuple[str, ...], tmp_path: Path) -> Iterator[Container]:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    (volume / "config.toml").write_text(SETTINGS + '[smtp]\nbind = ["127.0.0.1:2587"]\nbind_tls = []\n')
    for path in (volume, volume / "config.toml"):
        os.chown(path, OWNER, OWNER)
    with started(image, str(volume)) as made_of_it:
        yield made_of_it


def test_the_image_is_as_its_definition(image: tuple[str, ...]) -> None:
    (found,) = json.loads(output(*image, "image", "inspect", TAG))
    about = found["Config"]
    assert about["User"] == f"{OWNER}:{OWNER}"
    assert list(about["Volumes"]) == ["/var/lib/appliance"]
    assert about["StopSignal"] == "SIGTERM"
    check = about.get("Healthcheck") or found["Healthcheck"]
    assert check["Test"] == ["CMD", "/usr/bin/appliance", "health"]


def test_it_takes_mail_and_stops(container: Container) -> None:
    assert container.run("id", "-u").stdout == f"{OWNER}\n"
    assert container.run("touch", "/usr/here").returncode != 0
    create = ("account", "create", "demo", "--email", "demo@example.org", "--password-stdin")
    for words in (create, ("domain", "add", "demo", "example.com")):
        ran = container.run("appliance", *words, given="a long password\n")
        assert ran.returncode == 0, ran.stderr
    sent = container.run("appliance", "send-test", "demo", "--to", "ada@example.net", "--wait", "--json")
    assert sent.returncode == 0, sent.stderr
    output(*container.engine, "stop", "--time", "90", container.name)
    (found,) = json.loads(output(*container.engine, "inspect", container.name))
    assert found["State"]["ExitCode"] == 0


def test_it_is_set_up_with_one_command(image: tuple[str, ...]) -> None:
    """On a new volume, whose settings are the image's own, `setup` writes them and makes account, key and domain."""
    volume = f"{TAG}-{os.getpid()}"
    try:
        with started(image, volume) as container:
            words = (
                "--hostname",
                "mail.example.com",
                "--domain",
                "acme.example",
                "--email",
                "a@acme.example",
                "--no-wait",
            )
            ran = container.run("appliance", "setup", *words)
            assert "/var/lib/appliance/config.toml (written)" in ran.stdout, ran.stderr
            listed = container.run("appliance", "domain", "list", "--json")
            assert [each["name"] for each in json.loads(listed.stdout)["domains"]] == ["acme.example"]
    finally:
        subprocess.run([*image, "volume", "rm", "--force", volume], capture_output=True, timeout=60, check=False)
