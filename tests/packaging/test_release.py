"""What packaging/release hands out: complete, with right sums, the same bytes each time, and an image that runs."""

import gzip
import hashlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from appliance import __version__
from tests.packaging.built_binary import ROOT, made
from tests.packaging.test_container import OWNER, given
from tests.packaging.test_packaging import Tree, tree
from tests.ports import free_port
from tests.programs import require

__all__ = ["tree"]  # the fixture

CLIENTS = (ROOT / "clients/VERSION").read_text().strip()
RELEASE = ROOT / "dist/release"
START_TIMEOUT = 60.0  # seconds
NOTES: Any = runpy.run_path(str(ROOT / "packaging/release_notes.py"))["release_notes"]


def packaged(script: str, *words: str, moment: int = 1767225600) -> None:
    """Run a script of packaging/ at a fixed time."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment)}
    subprocess.run([sys.executable, ROOT / "packaging" / script, *words], env=environment, check=True, timeout=120)


# ---- before anything is built


def test_what_is_missing_is_said_at_once(tree: Tree) -> None:
    """Everything that a release needs besides a build, in the same line."""
    ran = tree.sh("packaging/release", FAKE_VERSION="")
    assert ran.returncode == 1
    assert re.fullmatch(
        r"not installed: (git nodejs npm ruby (?:ca-certificates )?binutils python3 .+)\. "
        r"On Debian, run: apt-get install \1\n",
        ran.stderr,
    )
    assert tree.installed() == []


@pytest.mark.parametrize("change", ["pyproject.toml", "packaging/new"])
def test_a_release_is_made_from_a_commit(change: str, tree: Tree) -> None:
    """A changed file, or a new one that would go into the binary, is named."""
    tree.link("git", "node", "npm", "gem", "objdump", "dpkg-deb", "gzip", "sha256sum")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(tree.root)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    with (tree.root / change).open("a") as file:
        file.write("# changed\n")
    ran = tree.sh("packaging/release", HOME=str(tree.root))
    assert ran.returncode == 1
    assert change in ran.stderr
    assert ran.stderr.endswith("a release is made from a commit: commit or stash these files\n")
    assert tree.installed() == []


# ---- the parts


def test_the_notes_are_the_changelogs() -> None:
    """Those of the version, or what is unreleased and says so; a version that is not there is an error."""
    log = "# Changelog\n\n## 1.1.0: more\n\n- two\n\n## 1.0.0\n\n- one\n"
    assert NOTES(log, "1.0.0") == "# Mail appliance 1.0.0\n\n- one\n"
    assert NOTES(log, "1.1.0") == "# Mail appliance 1.1.0\n\n- two\n"
    assert "- three" in NOTES(log.replace("## 1.1.0", "## Unreleased\n\n- three\n\n## 1.1.0"), "1.1.0")
    with pytest.raises(KeyError):
        NOTES(log, "2.0.0")
    assert NOTES((ROOT / "CHANGELOG.md").read_text(), __version__).startswith("# Mail appliance")


@pytest.mark.parametrize(
    ("language", "prefix"),
    [
        ("go", f"github.com/mail-appliance/mail-appliance-go@v{CLIENTS}/"),
        ("php", f"mail-appliance-php-{CLIENTS}/"),
    ],
)
def test_a_client_as_a_zip_file(language: str, prefix: str, tmp_path: Path) -> None:
    """The library with its licence; twice the same bytes, whenever the files were written."""
    packs = []
    for number in (1, 2):
        folder = tmp_path / str(number) / language
        shutil.copytree(ROOT / "clients" / language, folder)
        for path in folder.rglob("*"):
            os.utime(path, (number, number))
        target = tmp_path / str(number) / f"mail-appliance-{language}-{CLIENTS}.zip"
        packaged("client_zip.py", str(folder), CLIENTS, str(target))
        packs.append(target.read_bytes())
    assert packs[0] == packs[1]
    names = zipfile.ZipFile(io.BytesIO(packs[0])).namelist()
    assert all(name.startswith(prefix) for name in names)
    assert {f"{prefix}LICENSE", f"{prefix}README.md"} <= set(names)
    assert language == "go" or not any("/tests/" in name for name in names)


def layer(archive: Path) -> tuple[dict[str, Any], bytes]:
    """The image's configuration and its layer, once every digest on the way has been checked."""
    with tarfile.open(archive) as image:
        files = {member.name: image.extractfile(member).read() for member in image if member.isfile()}  # type: ignore[union-attr]

    def blob(descriptor: dict[str, Any]) -> bytes:
        content = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert hashlib.sha256(content).hexdigest() == descriptor["digest"].partition(":")[2]
        assert len(content) == descriptor["size"]
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    (packed,) = manifest["layers"]
    content = gzip.decompress(blob(packed))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    (of_docker,) = json.loads(files["manifest.json"])
    assert of_docker["RepoTags"] == [entry["annotations"]["org.opencontainers.image.ref.name"]]
    assert {of_docker["Config"], *of_docker["Layers"]} <= files.keys()
    return config, content


def program(directory: Path, moment: int) -> Path:
    """A program as packaging/build-binary leaves it, as small as can be."""
    settings = directory / "_internal/appliance/system/files/config.toml"
    settings.parent.mkdir(parents=True)
    shutil.copy(ROOT / "packaging/systemd/config.toml", settings)
    (directory / "appliance").write_text("program")
    for path in directory.rglob("*"):
        os.utime(path, (moment, moment))
    return directory


@pytest.mark.skipif(not Path("/usr/share/doc/libc6").exists(), reason="only root of a Debian has its packages")
def test_the_image_is_as_its_definition(tmp_path: Path) -> None:
    """User, volume, ports and command are those of the Containerfile; twice the same bytes."""
    archives = [tmp_path / "1.tar", tmp_path / "2.tar"]
    for number, archive in enumerate(archives):
        directory = program(tmp_path / f"program{number}", 1_000_000 + number)
        packaged("oci_image.py", str(directory), "1.2.3", "amd64", str(archive))
    assert archives[0].read_bytes() == archives[1].read_bytes()
    image, content = layer(archives[0])
    assert (image["os"], image["architecture"], image["created"]) == ("linux", "amd64", "2026-01-01T00:00:00Z")
    config = image["config"]
    assert [config["User"]] == given("USER")
    assert list(config["Volumes"]) == given("VOLUME")
    assert set(config["ExposedPorts"]) == {f"{port}/tcp" for port in given("EXPOSE")[0].split()}
    assert config["Entrypoint"] == ["/usr/bin/appliance"]
    assert config["Cmd"] == ["serve"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/appliance", "health"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "MIT"
    assert config["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        members = {member.name: member for member in files}
        settings = files.extractfile("var/lib/appliance/config.toml")
        assert settings is not None
        assert b'"0.0.0.0:2587"' in settings.read()
        authorities = files.extractfile("etc/ssl/certs/ca-certificates.crt")
        assert authorities is not None
        assert authorities.read().count(b"BEGIN CERTIFICATE") > 50
    data = members["var/lib/appliance"]
    assert (data.uid, data.gid, data.mode) == (OWNER, OWNER, 0o700)
    assert {member.mtime for member in members.values()} == {1767225600}
    assert [name for name, member in members.items() if member.mode & 0o6002 and not member.issym()] == ["tmp"]
    assert any(name.endswith("/libc.so.6") for name in members)


# ---- the release that was built


@pytest.fixture
def release() -> Path:
    """The folder with all files."""
    made(RELEASE / "SHA256SUMS", "sh packaging/build-twice")
    return RELEASE


def architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def test_everything_is_there_with_its_sum(release: Path) -> None:
    """`sha256sum -c` agrees with each file, and no other file is there."""
    machine = architecture()
    expected = {
        f"appliance-{__version__}-linux-{machine}",
        f"mail-appliance-{__version__}-{machine}.cdx.json",
        f"mail-appliance-{__version__}-{machine}.oci.tar",
        f"mail-appliance_{__version__}_{machine}.deb",
        f"mail_appliance-{__version__}.tar.gz",
        f"mail_appliance-{__version__}-py3-none-any.whl",
        f"mail_appliance_client-{CLIENTS}.tar.gz",
        f"mail_appliance_client-{CLIENTS}-py3-none-any.whl",
        f"mail-appliance-{CLIENTS}.tgz",
        f"mail_appliance-{CLIENTS}.gem",
        f"mail-appliance-go-{CLIENTS}.zip",
        f"mail-appliance-php-{CLIENTS}.zip",
        "RELEASE-NOTES.md",
    }
    sums = (release / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in sums} == expected
    assert {path.name for path in release.iterdir()} == expected | {"SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=release, check=True, timeout=60)


def test_two_builds_made_the_same_bytes(release: Path) -> None:
    """packaging/build-twice, which .ci/run runs, keeps the sums of both."""
    first, second = (made(ROOT / f"build/SHA256SUMS.{number}", "sh packaging/build-twice") for number in (1, 2))
    assert first.read_text() == second.read_text() == (release / "SHA256SUMS").read_text()


def test_the_packages_have_what_they_need(release: Path) -> None:
    """Each language's package has the library and its licence, and nothing of the machine that built it."""
    with tarfile.open(release / f"mail-appliance-{CLIENTS}.tgz") as npm:
        names = set(npm.getnames())
        assert {"package/dist/index.js", "package/dist/index.d.ts", "package/LICENSE"} <= names
        assert not any("node_modules" in name or "/src/" in name for name in names)
    with tarfile.open(release / f"mail_appliance-{CLIENTS}.gem") as gem:
        assert {"metadata.gz", "data.tar.gz"} <= set(gem.getnames())
    with zipfile.ZipFile(release / f"mail_appliance_client-{CLIENTS}-py3-none-any.whl") as wheel:
        assert "mail_appliance/__init__.py" in wheel.namelist()
    with tarfile.open(release / f"mail_appliance-{__version__}.tar.gz") as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
        assert {"LICENSE", "packaging/release", "appliance/__main__.py", "docs/install.md"} <= names
        assert not any(name.startswith(("build/", "dist/", ".venv/")) for name in names)


def test_standard_tools_read_the_image(release: Path) -> None:
    """skopeo, and with it podman and buildah, takes the archive for an image of this architecture."""
    archive = release / f"mail-appliance-{__version__}-{architecture()}.oci.tar"
    command = [require("skopeo"), "inspect", f"oci-archive:{archive}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    image = json.loads(shown)
    assert (image["Os"], image["Architecture"]) == ("linux", architecture())
    assert image["Labels"]["org.opencontainers.image.version"] == __version__


IN_THE_IMAGE = """
set -eu
root=$1; shift
mount --make-rprivate /
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot --userspec={owner}:{owner} "$root" "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter the image")
def test_the_image_runs(release: Path, tmp_path: Path) -> None:
    """Its files alone are enough to start the server, as the image's user, and to make an account."""
    _, content = layer(release / f"mail-appliance-{__version__}-{architecture()}.oci.tar")
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "-x", "-p", "-C", str(root)], input=content, check=True, timeout=60)
    tmp_path.chmod(0o755)
    settings = f'[server]\nhostname = "mail.example.com"\n[http]\nbind = ["127.0.0.1:{free_port()}"]\n'
    settings += '[smtp]\nbind = ["127.0.0.1:0"]\nbind_tls = []\n[delivery]\nmode = "sandbox"\n'
    (root / "var/lib/appliance/config.toml").write_text(settings)

    def inside(*words: str) -> list[str]:
        script = IN_THE_IMAGE.format(owner=OWNER)
        unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script, "sh", str(root)]
        return [*unshared, "/usr/bin/appliance", *words, "--config", "/var/lib/appliance/config.toml"]

    def ran(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            inside(*words), input=given, capture_output=True, text=True, timeout=120, check=False, env={}
        )

    log = tmp_path / "log"
    with log.open("wb") as written, subprocess.Popen(inside("serve"), stdout=written, stderr=written, env={}) as server:
        try:
            deadline = time.monotonic() + START_TIMEOUT
            while (health := ran("health")).returncode != 0:
                assert time.monotonic() < deadline, health.stderr + log.read_text()
                assert server.poll() is None, log.read_text()
                time.sleep(0.2)
            words = ("account", "create", "demo", "--email", "demo@example.org", "--password-stdin")
            created = ran(*words, given="a long password\n")
            assert created.returncode == 0, created.stderr
            doctor = ran("doctor", "--json")
            assert "knows no authorities" not in doctor.stdout, doctor.stdout
        finally:
            server.kill()
    assert (root / "var/lib/appliance/appliance.db").stat().st_uid == OWNER
