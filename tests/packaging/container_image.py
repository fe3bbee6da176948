"""The container image, built by an engine that is here; its base must be there already, so that nothing is fetched."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.packaging.built_binary import ROOT, made

FILE = ROOT / "packaging/Containerfile"
# The base of the image that is built here. Where no registry can be reached, one that was made of a Debian tree:
# mmdebstrap --variant=minbase --include=ca-certificates bookworm - | podman import - debian:bookworm-slim
BASE = os.environ.get("APPLIANCE_TEST_BASE", "debian:bookworm-slim")
TAG = "mail-appliance-test"
# crun, podman's first choice, cannot work with every mixture of cgroups.
ENGINES = (("podman",), ("podman", "--runtime", "runc"), ("docker",))
# Few enough for a machine that may not raise its own limits.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
# podman has systemd run the health check; where there is none the container would not start.
WITHOUT_SYSTEMD = () if Path("/run/systemd/private").exists() else ("--no-healthcheck",)


def output(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def needed_here(engine: tuple[str, ...]) -> tuple[str, ...]:
    """Options without which this engine would start nothing on this machine."""
    return (*LIMITS, *(WITHOUT_SYSTEMD if engine[0] == "podman" else ()))


def probe(engine: tuple[str, ...], *network: str) -> list[str]:
    """A command that succeeds where an engine has the base of the image, and can start it with this network."""
    return [*engine, "run", "--rm", "--pull=never", *LIMITS, *network, BASE, "true"]


def find_engine() -> tuple[str, ...]:
    """The engine that has the base of the image, and can start it."""
    for command in ENGINES:
        with suppress(FileNotFoundError):
            tried = probe(command, "--network", "none")
            if subprocess.run(tried, capture_output=True, timeout=120, check=False).returncode == 0:
                return command
    pytest.skip(f"no container engine with the image {BASE} is here")


def base_by_digest(engine: tuple[str, ...]) -> str:
    """The base as the build takes it: by the digest that the engine knows it by."""
    if engine[0] == "podman":
        digest = output(*engine, "image", "inspect", "--format", "{{.Digest}}", BASE)
        return f"{BASE.rpartition(':')[0]}@{digest}"
    return output(*engine, "image", "inspect", "--format", "{{index .RepoDigests 0}}", BASE)


def built_image() -> tuple[str, ...]:
    """The engine, once it has built the image of what packaging/build-all made."""
    made(ROOT / "dist/appliance", "sh packaging/build-all")
    found = find_engine()
    formed = ["--format", "docker", "--isolation", "chroot"] if found[0] == "podman" else []
    output(
        *(*found, "build", *formed, "--pull=never", "--build-arg", f"BASE={base_by_digest(found)}", "-t", TAG),
        *("-f", str(FILE), str(ROOT / "dist")),
    )
    return found
