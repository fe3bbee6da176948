"""The Debian package: what is in it, and that it installs, upgrades, goes and is purged cleanly."""

import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance import __version__
from appliance.system.service import file
from tests.e2e.submission.client import final_status, submit
from tests.packaging.built_binary import ROOT, package
from tests.programs import needs
from tests.running_appliance import appliance

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can install below another root")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture(scope="module")
def deb() -> Path:
    return package()


@dataclass(frozen=True, slots=True)
class Machine:
    """A directory that dpkg takes for a whole system; the maintainer scripts run, with $DPKG_ROOT."""

    root: Path

    def dpkg(self, *arguments: str) -> None:
        output(
            "dpkg",
            f"--root={self.root}",
            "--force-script-chrootless",
            "--force-depends",
            "--no-triggers",
            "--log=/dev/null",
            *arguments,
        )

    def state(self) -> str:
        asked = [
            "dpkg-query",
            f"--admindir={self.root}/var/lib/dpkg",
            "-W",
            "-f=${Status} ${Version}",
            "mail-appliance",
        ]
        return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("info", "updates", "triggers"):
        (tmp_path / "var/lib/dpkg" / name).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    return Machine(tmp_path)


def contents(deb: Path) -> dict[str, str]:
    lines = [line.split(maxsplit=5) for line in output("dpkg-deb", "--contents", str(deb)).splitlines()]
    return {line[5].removeprefix("."): f"{line[0]} {line[1]}" for line in lines}


def test_it_holds_the_program_the_unit_and_the_documents(deb: Path) -> None:
    held = contents(deb)
    for path in (
        "/usr/bin/appliance -> ../lib/mail-appliance/appliance",
        "/usr/lib/mail-appliance/appliance",
        "/usr/lib/systemd/system/appliance.service",
        "/usr/lib/systemd/system/appliance-backup.service",
        "/usr/lib/systemd/system/appliance-backup.timer",
        "/usr/share/man/man1/appliance.1.gz",
        "/usr/share/man/man5/appliance-config.5.gz",
        "/usr/share/bash-completion/completions/appliance",
        "/usr/share/zsh/vendor-completions/_appliance",
        "/usr/share/fish/vendor_completions.d/appliance.fish",
        "/usr/lib/sysusers.d/mail-appliance.conf",
        "/usr/lib/tmpfiles.d/mail-appliance.conf",
        "/usr/share/mail-appliance/config.toml",
        "/usr/share/mail-appliance/grafana.json",
        "/usr/share/doc/mail-appliance/copyright",
        "/usr/share/doc/mail-appliance/SECURITY.md",
        f"/usr/lib/mail-appliance/_internal/mail_appliance-{__version__}.dist-info/licenses/LICENSE",
        "/usr/share/doc/mail-appliance/changelog.gz",
        "/usr/share/doc/mail-appliance/docs/install.md",
        "/usr/share/doc/mail-appliance/docs/api/emails.md",
    ):
        assert path in held
    assert all(re.fullmatch(r"[-dl]rw.r-.r-. root/root|lrwxrwxrwx root/root", about) for about in held.values())
    assert {path for path in held if path.startswith(("/etc", "/var"))} == set()


def test_every_file_that_the_program_reads_is_in_it(deb: Path) -> None:
    held, program = contents(deb), ROOT / "appliance"
    read = [path for path in program.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert len(read) > 20
    for path in read:
        assert f"/usr/lib/mail-appliance/_internal/{path.relative_to(ROOT).as_posix()}" in held
    for path in (ROOT / "docs").rglob("*.md"):
        assert f"/usr/lib/mail-appliance/_internal/appliance/{path.relative_to(ROOT)}" in held


def test_it_says_what_it_is(deb: Path) -> None:
    fields = dict(re.findall(r"^ ?([A-Z][A-Za-z-]+): (.*)$", output("dpkg-deb", "--field", str(deb)), re.MULTILINE))
    assert fields["Version"] == __version__
    assert fields["Architecture"] == output("dpkg", "--print-architecture").strip()
    assert re.search(r"libc6 \(>= 2\.\d+\)", fields["Depends"])
    assert int(fields["Installed-Size"]) > 10_000
    units = "".join(file(name) for name in ("appliance.service", "appliance-backup.service"))
    run = "\n".join(line for line in units.splitlines() if line.startswith("Exec"))
    assert "procps" in fields["Depends"] or not re.search(r"/(kill|ps|pgrep|pkill)\b", run)


def test_the_same_program_makes_the_same_package(deb: Path) -> None:
    before, packed = (
        deb.read_bytes(),
        subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], capture_output=True, check=True),
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        (moment,) = {member.mtime for member in archive}
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(int(moment))}  # a commit since then would be another time
    command = ["sh", str(ROOT / "packaging/build-deb")]
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=300)
    is_same = deb.read_bytes() == before  # pytest would compare the bytes one by one
    assert is_same


def test_completion_completes(deb: Path, tmp_path: Path) -> None:
    output("dpkg-deb", "--extract", str(deb), str(tmp_path))
    tab = "COMP_WORDS=(appliance suppr) COMP_CWORD=1 COMP_TYPE=9; _appliance_completion appliance"
    script = f'source {tmp_path}/usr/share/bash-completion/completions/appliance; {tab}; echo "${{COMPREPLY[@]}}"'
    environment = {**os.environ, "PATH": f"{tmp_path}/usr/bin:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "suppression\n"


def test_its_checksums_are_right(deb: Path, tmp_path: Path) -> None:
    """`dpkg --verify` will find every file as it was packed, and the unit is the one that was tested."""
    output("dpkg-deb", "--raw-extract", str(deb), str(tmp_path / "x"))
    subprocess.run(["md5sum", "--quiet", "-c", "DEBIAN/md5sums"], cwd=tmp_path / "x", check=True, timeout=60)
    assert (tmp_path / "x/usr/lib/systemd/system/appliance.service").read_text() == file("appliance.service")
    told = subprocess.run(
        [tmp_path / "x/usr/bin/appliance", "--version"], capture_output=True, text=True, env={}, check=True
    )
    assert told.stdout == f"appliance {__version__}\n"
    refused = subprocess.run([tmp_path / "x/usr/bin/appliance", "install"], capture_output=True, text=True, check=False)
    assert "is from the Debian package" in refused.stderr


def test_the_program_in_it_takes_mail_by_smtp(deb: Path, tmp_path: Path) -> None:
    output("dpkg-deb", "--extract", str(deb), str(tmp_path / "x"))
    with appliance(tmp_path, program=("/usr/bin/env", "-i", str(tmp_path / "x/usr/bin/appliance"))) as running:
        assert final_status(running, submit(running)) == "delivered"
        assert running.complaints() == []
        assert running.terminate() == 0


@needs("systemd")
@needs("deb-systemd")
@needs_root
def test_install_upgrade_remove_and_purge(deb: Path, machine: Machine, tmp_path: Path) -> None:
    root = machine.root
    machine.dpkg("--install", str(deb))
    assert machine.state() == f"install ok installed {__version__}"
    enabled = root / "etc/systemd/system/multi-user.target.wants/appliance.service"
    assert enabled.is_symlink()
    config, data_dir = root / "etc/appliance/config.toml", root / "var/lib/appliance"
    (owner,) = [
        line.split(":") for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("appliance:")
    ]
    backups = root / "var/backups/appliance"
    for directory in (data_dir, backups):
        assert (directory.stat().st_uid, stat.S_IMODE(directory.stat().st_mode)) == (int(owner[2]), 0o700)
    (backups / "2026-11-15.tar").write_text("backup")
    assert (config.stat().st_gid, stat.S_IMODE(config.stat().st_mode)) == (int(owner[3]), 0o640)

    config.write_text(config.read_text().replace('hostname = ""', 'hostname = "mail.example.com"'))
    mine = config.read_text()
    (data_dir / "appliance.db").write_text("mail")
    machine.dpkg("--install", str(newer(deb, tmp_path)))
    assert machine.state() == f"install ok installed {__version__}+next"
    assert (config.read_text(), (data_dir / "appliance.db").read_text()) == (mine, "mail")
    assert enabled.is_symlink()

    machine.dpkg("--remove", "mail-appliance")
    assert not (root / "usr/bin/appliance").exists()
    assert not (root / "usr/lib/mail-appliance").exists()
    assert (config.read_text(), (data_dir / "appliance.db").read_text()) == (mine, "mail")

    machine.dpkg("--purge", "mail-appliance")
    assert not config.parent.exists()
    assert not data_dir.exists()
    assert (backups / "2026-11-15.tar").exists()
    assert not enabled.is_symlink()
    assert machine.state() in ("", "unknown ok not-installed ")


@needs("systemd")
@needs("deb-systemd")
@needs_root
def test_a_disabled_service_stays_disabled(deb: Path, machine: Machine, tmp_path: Path) -> None:
    machine.dpkg("--install", str(deb))
    enabled = machine.root / "etc/systemd/system/multi-user.target.wants/appliance.service"
    output("systemctl", f"--root={machine.root}", "disable", "appliance.service")
    assert not enabled.is_symlink()
    machine.dpkg("--install", str(newer(deb, tmp_path)))
    assert not enabled.is_symlink()


def newer(deb: Path, directory: Path) -> Path:
    tree = directory / "newer"
    output("dpkg-deb", "--raw-extract", str(deb), str(tree))
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}\n", f"Version: {__version__}+next\n"))
    output("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", str(tree), str(directory / "newer.deb"))
    shutil.rmtree(tree)
    return directory / "newer.deb"


@pytest.mark.slow
@needs("lintian")
def test_lintian_finds_no_fault(deb: Path) -> None:
    ran = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", str(deb)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout
