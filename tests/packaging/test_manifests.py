"""compose.yaml and packaging/kubernetes are valid by their schemas, and run the image as docs/install.md does."""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from appliance import __version__
from appliance.config.load import parse
from tests.docs.documents import BLOCKS
from tests.packaging.built_binary import ROOT

KUBERNETES = sorted((ROOT / "packaging" / "kubernetes").glob("*.yaml"))
WORKLOADS = {"sqlite.yaml": "StatefulSet", "postgresql.yaml": "Deployment"}
yaml: Any = pytest.importorskip("yaml")  # of requirements-test.txt
SCHEMA = json.loads((Path(__file__).parent / "kubernetes_schema.json").read_text())


def validate(manifest: dict[str, Any]) -> None:
    """Check an object; an unknown field is an error, as with `kubectl apply`."""
    jsonschema_rs.validate({**SCHEMA[manifest["kind"]], "$defs": SCHEMA["$defs"]}, manifest)


def objects(path: Path) -> dict[str, dict[str, Any]]:
    """The objects of a file by their kind."""
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(path.read_text())}


def pod(path: Path) -> dict[str, Any]:
    """The pod of a file's workload."""
    spec: dict[str, Any] = objects(path)[WORKLOADS[path.name]]["spec"]["template"]["spec"]
    return spec


each_file = pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return content


def test_the_compose_files_are_valid() -> None:
    """By the Compose specification; a misspelled key is noticed."""
    schema = json.loads((Path(__file__).parent / "compose_schema.json").read_text())
    jsonschema_rs.validate(schema, compose())
    development = yaml.safe_load((ROOT / "packaging" / "compose.dev.yaml").read_text())
    jsonschema_rs.validate(schema, development)
    (service,) = development["services"].values()
    assert (service["command"], service["network_mode"]) == (["dev"], "host")
    assert service["image"] == compose()["services"]["mail"]["image"]
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"services": {"mail": {"imagee": "x"}}})


def test_the_compose_file_runs_the_image_as_the_documents_do() -> None:
    """Every option of `podman run` in docs/install.md is there with the same value."""
    service = compose()["services"]["mail"]
    (block,) = [block for block in BLOCKS if block.document == "install.md" and "podman run" in block.text]
    (line,) = re.findall(r"^podman run (.+)$", block.text.replace("\\\n", ""), re.MULTILINE)
    words = shlex.split(line)
    options: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(words):
        options.setdefault(name, []).append(value)
    assert service["volumes"] == options["-v"]
    assert service["ports"] == options["-p"]
    assert [service["hostname"]] == options["--hostname"]
    assert [service["restart"]] == options["--restart"]
    assert [service["stop_grace_period"].removesuffix("s")] == options["--stop-timeout"]
    assert service["tmpfs"] == options["--tmpfs"]
    assert service["cap_drop"] == options["--cap-drop"]
    assert service["security_opt"] == options["--security-opt"]
    assert service["read_only"] is ("--read-only" in words)


@each_file
def test_the_objects_are_valid(path: Path) -> None:
    """By the API of Kubernetes, with the workload that the file is for."""
    made = objects(path)
    assert WORKLOADS[path.name] in made
    for manifest in made.values():
        validate(manifest)


def test_a_mistake_is_noticed() -> None:
    """A misspelled field and a value of the wrong type are errors."""
    deployment = objects(ROOT / "packaging/kubernetes/postgresql.yaml")["Deployment"]
    deployment["spec"]["replicas"] = "two"
    with pytest.raises(jsonschema_rs.ValidationError):
        validate(deployment)
    deployment["spec"] |= {"replicas": 2, "replica": 2}
    with pytest.raises(jsonschema_rs.ValidationError):
        validate(deployment)


@each_file
def test_the_probes_ask_the_servers_own_routes(path: Path) -> None:
    """/healthz decides on a restart, /readyz on new connections; the service sends these to ports that are open."""
    (container,) = pod(path)["containers"]
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")} == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8080, "submission": 2587, "submissions": 2465}
    service = objects(path)["Service"]["spec"]
    assert {port["targetPort"] for port in service["ports"]} == set(ports)
    assert service["selector"] == {"app": "mail"}


@each_file
def test_the_pod_has_no_rights(path: Path) -> None:
    """The image's own user, no capability, a read-only root, and time to finish the mail in flight."""
    spec = pod(path)
    (user,) = re.findall(r"^USER (\d+):", (ROOT / "packaging/Containerfile").read_text(), re.MULTILINE)
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == int(user)
    assert spec["terminationGracePeriodSeconds"] == 90
    (container,) = spec["containers"]
    limits = container["securityContext"]
    assert (limits["readOnlyRootFilesystem"], limits["allowPrivilegeEscalation"]) == (True, False)
    assert limits["capabilities"] == {"drop": ["ALL"]}


@each_file
def test_every_volume_that_is_mounted_is_declared(path: Path) -> None:
    """The data directory and /tmp can be written to; settings and key come from the objects of the file."""
    workload = objects(path)[WORKLOADS[path.name]]["spec"]
    claimed = {claim["metadata"]["name"] for claim in workload.get("volumeClaimTemplates", ())}
    declared = claimed | {volume["name"] for volume in pod(path)["volumes"]}
    (container,) = pod(path)["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == declared
    assert ("data" in claimed) is (path.name == "sqlite.yaml")
    assert {"/var/lib/appliance", "/etc/appliance", "/tmp"} <= set(mounts)


@each_file
def test_the_settings_are_accepted(path: Path) -> None:
    """The server reads them, listens on the ports of the pod, and keeps its data on the volume."""
    made = objects(path)
    text = made["ConfigMap"]["data"] if "ConfigMap" in made else made["Secret"]["stringData"]
    config = parse(text["config.toml"], Path("/etc/appliance/config.toml"))
    assert config.server.hostname == "mail.example.com"
    assert config.server.data_dir.is_relative_to("/var/lib/appliance")
    assert bool(config.store.url) is (path.name == "postgresql.yaml")
    binds = [str(bind) for bind in (*config.http.bind, *config.smtp.bind, *config.smtp.bind_tls)]
    assert [int(re.findall(r"\d+", bind)[-1]) for bind in binds] == [8080, 2587, 2465]


def test_no_key_is_published() -> None:
    """The key that encrypts the database's secrets comes from a Secret that no file has."""
    path = ROOT / "packaging/kubernetes/postgresql.yaml"
    volumes = {volume["name"]: volume for volume in pod(path)["volumes"]}
    assert volumes["key"]["secret"]["secretName"] == "mail-key"
    secret = objects(path)["Secret"]
    assert (secret["metadata"]["name"], set(secret["stringData"])) == ("mail-settings", {"config.toml"})
    assert "data" not in secret


def test_they_name_the_image_of_this_version() -> None:
    """As `podman load` of the release names it."""
    image = f"mail-appliance:{__version__}"
    assert compose()["services"]["mail"]["image"] == image
    for path in KUBERNETES:
        assert [container["image"] for container in pod(path)["containers"]] == [image]
