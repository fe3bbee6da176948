"""Writes the container image as an archive that podman, docker and skopeo load, without an engine or a base image.

The image has the program of packaging/build-binary, this machine's C library and zlib, Debian's list of certificate
authorities, and no shell. User, ports, volume, labels and settings are those of packaging/Containerfile. The same
program and C library make the same bytes: names are sorted and times are $SOURCE_DATE_EPOCH.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CONTAINERFILE = Path(__file__).with_name("Containerfile")
AUTHORITIES = Path("/usr/share/ca-certificates/mozilla")
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
LIBRARIES = ("libc6", "zlib1g")  # packages of the libraries that the program does not contain
DEBIAN_PACKAGES = (*LIBRARIES, "ca-certificates")
LIBRARY_FILE = re.compile(r"/(?:usr/)?(lib(?:64)?/(?:[\w-]+/)?(?:ld-linux[^/]*|lib[^/]+\.so(?:\.\d+)+))")
MEDIA = "application/vnd.oci.image"
NANOSECONDS = 10**9
FROM_THE_PROGRAM = "usr/lib/mail-appliance"
SETTINGS = f"{FROM_THE_PROGRAM}/_internal/appliance/system/files/config.toml"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a directory or a link of the image, with its path below the root."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    owner: int = 0
    link: str = ""
    is_directory: bool = False


# ---- packaging/Containerfile


def instructions(text: str) -> list[tuple[str, str]]:
    """Every instruction with its words; continued lines are joined."""
    joined = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest) for name, rest in (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())]


def container_config(text: str) -> dict[str, Any]:
    """The image's `config` object. `Healthcheck` is docker's own; others ignore it."""
    words = dict(instructions(text))
    labels = [rest for name, rest in instructions(text) if name == "LABEL" and "${BASE}" not in rest]
    options, _, command = words["HEALTHCHECK"].partition("CMD ")
    timing = dict(re.findall(r"--([\w-]+)=(\d+)s", options))
    return {
        "User": words["USER"],
        "WorkingDir": words["WORKDIR"],
        "ExposedPorts": {f"{port}/tcp": {} for port in words["EXPOSE"].split()},
        "Volumes": {words["VOLUME"]: {}},
        "Env": ["PATH=/usr/bin", f"SSL_CERT_FILE=/{BUNDLE}"],
        "Entrypoint": json.loads(words["ENTRYPOINT"]),
        "Cmd": json.loads(words["CMD"]),
        "StopSignal": words["STOPSIGNAL"],
        "Labels": dict(item.split("=", 1) for item in shlex.split(" ".join(labels))),
        "Healthcheck": {
            "Test": ["CMD", *json.loads(command)],
            "Interval": int(timing["interval"]) * NANOSECONDS,
            "Timeout": int(timing["timeout"]) * NANOSECONDS,
            "StartPeriod": int(timing["start-period"]) * NANOSECONDS,
        },
    }


def container_settings(text: str, settings: str) -> str:
    """The package's settings with the replacements of the Containerfile; each must apply once."""
    (command,) = [rest for name, rest in instructions(text) if name == "RUN" and "sed " in rest]
    words = shlex.split(command)
    for expression in (words[at + 1] for at, word in enumerate(words) if word == "-e"):
        _, old, new, _ = expression.split("/")
        if settings.count(old) != 1:
            raise ValueError(f"packaging/Containerfile replaces {old!r}, which the settings do not have once")
        settings = settings.replace(old, new)
    return settings


# ---- the files


def program_files(program: Path) -> Iterator[Entry]:
    """The program, and its command."""
    for path in program.rglob("*"):
        place = f"{FROM_THE_PROGRAM}/{path.relative_to(program)}"
        if path.is_symlink():
            yield Entry(place, link=os.readlink(path))
        elif path.is_file():
            mode = 0o755 if path == program / "appliance" else 0o644
            yield Entry(place, path.read_bytes(), mode)
    yield Entry("usr/bin/appliance", link="../lib/mail-appliance/appliance")


def system_libraries(listed: Iterable[str]) -> Iterator[Entry]:
    """Libraries and the loader, from the file lists of Debian's packages; `/lib` links to `/usr/lib`."""
    for name in listed:
        if (match := LIBRARY_FILE.fullmatch(name)) is None:
            continue
        path = Path(name)
        if path.is_symlink():
            yield Entry(f"usr/{match[1]}", link=_link_below_usr(path))
        else:
            yield Entry(f"usr/{match[1]}", path.read_bytes(), 0o755)


def _link_below_usr(path: Path) -> str:
    """A link's target; an absolute one below `/lib` is below `/usr/lib` too."""
    target = os.readlink(path)
    return f"/usr{target}" if target.startswith("/lib") else target


def system_files(owner: int, settings: str) -> Iterator[Entry]:
    """Users, name resolution, certificate authorities, settings, and Debian's notes on its own packages."""
    home = "/var/lib/appliance"
    yield Entry("etc/passwd", f"root:x:0:0:root:/root:/\nappliance:x:{owner}:{owner}::{home}:/\n".encode())
    yield Entry("etc/group", f"root:x:0:\nappliance:x:{owner}:\n".encode())
    yield Entry("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    yield Entry("etc/os-release", Path("/etc/os-release").read_bytes())
    certificates = [path.read_text().strip() for path in sorted(AUTHORITIES.glob("*.crt"))]
    yield Entry(BUNDLE, "\n".join([*certificates, ""]).encode())
    yield Entry("usr/lib/ssl/cert.pem", link=f"/{BUNDLE}")
    yield Entry("etc/appliance/config.toml", settings.encode())
    yield Entry("var/lib/appliance/config.toml", settings.encode(), 0o600, owner)
    for package in DEBIAN_PACKAGES:
        yield Entry(f"usr/share/doc/{package}/copyright", Path(f"/usr/share/doc/{package}/copyright").read_bytes())
        # Scanners of images find the versions of packages here.
        yield Entry(f"var/lib/dpkg/status.d/{package}", output("dpkg-query", "--status", package).encode())
    licence = CONTAINERFILE.with_name("debian") / "copyright"
    yield Entry("usr/share/doc/mail-appliance/copyright", licence.read_bytes())
    for name in ("lib", "lib64"):
        yield Entry(name, link=f"usr/{name}")
    for name in ("dev", "proc", "run", "sys"):
        yield Entry(name, mode=0o755, is_directory=True)
    yield Entry("tmp", mode=0o1777, is_directory=True)
    yield Entry("var/lib/appliance", mode=0o700, owner=owner, is_directory=True)


def with_parents(entries: Iterable[Entry]) -> list[Entry]:
    """The entries by path, with every directory above them first."""
    made = {entry.path: entry for entry in entries}
    for path in list(made):
        for parent in Path(path).parents:
            if str(parent) != ".":
                made.setdefault(str(parent), Entry(str(parent), mode=0o755, is_directory=True))
    return [made[path] for path in sorted(made)]


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


# ---- the archive


def tar(entries: Iterable[Entry], moment: int) -> bytes:
    """A tar file with these entries, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.mode, member.mtime, member.uid, member.gid = entry.mode, moment, entry.owner, entry.owner
            if entry.link:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.link, 0o777
            elif entry.is_directory:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(entry.content)
            archive.addfile(member, io.BytesIO(entry.content))
    return buffer.getvalue()


def image_archive(layer: bytes, config: dict[str, Any], version: str, architecture: str, moment: int) -> bytes:
    """An OCI layout as a tar file. Its `manifest.json` lets docker load it without the OCI layout."""
    packed = gzip.compress(layer, 6, mtime=0)
    created = f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"
    image = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sum(layer)}"]},
        "history": [{"created": created, "created_by": "packaging/oci_image.py"}],
    }
    described = _json(image)
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": _descriptor(f"{MEDIA}.config.v1+json", described),
        "layers": [_descriptor(f"{MEDIA}.layer.v1.tar+gzip", packed)],
    }
    name = f"mail-appliance:{version}"
    about = {"platform": {"architecture": architecture, "os": "linux"}}
    about |= {"annotations": {"org.opencontainers.image.ref.name": name}}
    index = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.index.v1+json",
        "manifests": [_descriptor(f"{MEDIA}.manifest.v1+json", _json(manifest)) | about],
    }
    blobs = {f"blobs/sha256/{_sum(blob)}": blob for blob in (described, packed, _json(manifest))}
    of_docker = [{"Config": _blob(described), "RepoTags": [name], "Layers": [_blob(packed)]}]
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)} | blobs
    return tar(
        with_parents(Entry(path, blob) for path, blob in (files | {"manifest.json": _json(of_docker)}).items()), moment
    )


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sum(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _blob(blob: bytes) -> str:
    return f"blobs/sha256/{_sum(blob)}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_sum(blob)}", "size": len(blob)}


def build(program: Path, version: str, architecture: str) -> bytes:
    """The whole archive."""
    text = CONTAINERFILE.read_text()
    config = container_config(text)
    config["Labels"]["org.opencontainers.image.version"] = version
    owner = int(config["User"].partition(":")[0])
    own = list(program_files(program))
    (shipped,) = [entry.content.decode() for entry in own if entry.path == SETTINGS]
    libraries = list(system_libraries(output("dpkg-query", "--listfiles", *LIBRARIES).splitlines()))
    entries = [*own, *libraries, *system_files(owner, container_settings(text, shipped))]
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    return image_archive(tar(with_parents(entries), moment), config, version, architecture, moment)


if __name__ == "__main__":
    program_directory, image_version, image_architecture, target = sys.argv[1:]
    Path(target).write_bytes(build(Path(program_directory), image_version, image_architecture))
