"""/openapi.json is fit for tools that others use: validators accept it, and what generators make of it works.

The generated code is checked by its own compiler; in Python it also sends a message and reads it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from appliance.web.openapi import document
from tests.programs import require
from tests.running_appliance import appliance

DOCUMENT = document("https://mail.example.com")
MINUTES = 5 * 60  # seconds that a tool may take on a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(MINUTES + 60)]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("described") / "openapi.json"
    file.write_text(json.dumps(DOCUMENT))
    return file


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a program says that succeeds; it gets nothing from the network."""
    asks_none = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "GOPROXY": "off"}
    env = {**os.environ, **asks_none, **environment}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=MINUTES)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def generate(described: Path, language: str, into: Path, *options: str) -> None:
    """Have openapi-generator write a client, without its tests and documents."""
    require("java")
    code = "import sys, openapi_generator_cli as cli; sys.exit(cli.run(sys.argv[1:]).returncode)"
    parts = "models,apis,supportingFiles,apiTests=false,modelTests=false,apiDocs=false,modelDocs=false"
    words = ("generate", "-i", str(described), "-g", language, "-o", str(into), "--global-property", parts)
    run(sys.executable, "-c", code, *words, *options, cwd=described.parent)


# ---- validators


def test_it_is_openapi() -> None:
    """The document is valid by the schema of OpenAPI 3.1, and every reference and default in it holds."""
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_redocly_finds_no_error(described: Path) -> None:
    """The linter's recommended rules are kept; what it only warns of is known."""
    found = json.loads(run(require("redocly"), "lint", described, "--format=json", cwd=described.parent))["problems"]
    assert [each for each in found if each["severity"] == "error"] == []
    # Health checks take no input to refuse; the project has no licence to name; the test's server is an example.
    # `/v1/inbound/{id}/raw` and `/v1/inbound/addresses/{address}` cross, but no id is `addresses`, no address `raw`.
    known = {"operation-4xx-response", "info-license", "no-server-example.com", "no-ambiguous-paths"}
    assert {each["ruleId"] for each in found} <= known
    crossing = [each for each in found if each["ruleId"] == "no-ambiguous-paths"]
    assert all("inbound" in json.dumps(each["location"]) for each in crossing), crossing


def test_ajv_compiles_every_schema(described: Path, tmp_path: Path) -> None:
    """In strict mode, with patterns in Unicode mode: an unknown keyword or escape would be refused."""
    schemas: dict[str, Any] = DOCUMENT["components"]["schemas"]
    every = {"$defs": schemas, "anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in schemas]}
    (tmp_path / "every.json").write_text(json.dumps(every).replace("#/components/schemas/", "#/$defs/"))
    options = ("--spec=draft2020", "--strict=true", "--validate-formats=false")
    run(require("ajv"), "compile", *options, "-s", "every.json", cwd=tmp_path)


def test_every_pattern_compiles_in_unicode_mode(tmp_path: Path) -> None:
    """JavaScript reads each pattern, of schemas and of parameters, as a regular expression with the flag `u`."""
    code = """let count = 0;
        const walk = (node) => {
          if (typeof node?.pattern === "string") { new RegExp(node.pattern, "u"); count = count + 1; }
          if (node && typeof node === "object") Object.values(node).forEach(walk);
        };
        walk(JSON.parse(require("fs").readFileSync(0, "utf8")));
        console.log(count);"""
    words = (require("node"), "-e", code)
    done = subprocess.run(words, input=json.dumps(DOCUMENT), capture_output=True, text=True, timeout=MINUTES)
    assert int(done.stdout or 0) > 20, done.stderr


# ---- generators

USE_IN_TYPESCRIPT = """\
import type { components, operations, webhooks } from "./api";

type SendRequest = components["schemas"]["SendRequest"];
type Event = webhooks["email.delivered"]["post"]["requestBody"]["content"]["application/json"];
type Failure = operations["sendEmail"]["responses"][409]["content"]["application/json"];

export const one: SendRequest = { from: "a@example.com", to: "b@example.net", subject: "s", text: null };
export const many: SendRequest = { from: "a@example.com", to: ["b@example.net"], template: "t", variables: { n: 1 } };
export const code = (failure: Failure): components["schemas"]["Code"] => failure.code;
export const reply = (event: Event): number | undefined => event.data.smtp_code;
// @ts-expect-error: `to` is required
export const none: SendRequest = { from: "a@example.com" };
// @ts-expect-error: there is no such field
export const more: SendRequest = { from: "a@example.com", to: "b@example.net", unknown: 1 };
"""


def test_typescript_compiles(described: Path, tmp_path: Path) -> None:
    """What openapi-typescript makes is correct in strict mode, and its types allow what the API does, and no more."""
    run(require("openapi-typescript"), described, "-o", tmp_path / "api.ts", cwd=tmp_path)
    (tmp_path / "use.ts").write_text(USE_IN_TYPESCRIPT)
    run(require("typescript"), "--strict", "--noEmit", "use.ts", cwd=tmp_path)


USE_IN_PYTHON = """\
import sys
import mail_client as made

url, username, password = sys.argv[1:]
api = made.SendingApi(made.ApiClient(made.Configuration(host=url, username=username, password=password)))
message = made.SendRequest(
    var_from="orders@example.com",
    to=made.SendRequestTo(["ada@example.net"]),
    subject="s",
    text="t",
    attachments=[made.Attachment(filename="a.txt", content="aGk=", content_type='text/plain; charset="utf-8"')],
)
sent = api.send_email("key", message)
print(api.get_email(sent.id).id == sent.id)
try:
    api.send_email("key", made.SendRequest(var_from="orders@example.com", to=message.to, subject="other", text="t"))
except made.ApiException as refused:
    print(refused.status, refused.data.code.value)
"""


def test_a_python_client_sends(described: Path, tmp_path: Path) -> None:
    """What openapi-generator makes can be imported, sends a message, reads it, and has the error's code."""
    made = tmp_path / "made"
    generate(described, "python", made, "--package-name", "mail_client")
    with appliance(tmp_path, credit=None) as running:
        account = running.account
        words = ("-c", USE_IN_PYTHON, running.url, account.username, account.password)
        said = run(sys.executable, *words, cwd=made, PYTHONPATH=str(made), no_proxy="*")
    assert said.split() == ["True", "409", "idempotency_conflict"]


def test_a_go_client_compiles(described: Path, tmp_path: Path) -> None:
    """What openapi-generator makes compiles, and needs no further module.

    Values of different enums have the same words, such as `failed`, so each needs the prefix of its enum.
    """
    generate(described, "go", tmp_path, "--additional-properties=enumClassPrefix=true,packageName=client")
    (tmp_path / "go.mod").write_text("module example.com/client\n\ngo 1.19\n")
    run(require("go"), "vet", ".", cwd=tmp_path)
