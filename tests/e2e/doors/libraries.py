"""Runs the providers' own libraries for Node, unmodified, and reads what a message became."""

import email
import email.policy
import json
import subprocess
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from tests.e2e.webhooks.customer import Customer
from tests.programs import require

# Calls methods of a client, one after the other: their values, or what their errors show.
_NODE = """
const { library, make, calls } = JSON.parse(require("fs").readFileSync(0), (key, value) =>
    value && value.$bytes ? Buffer.from(value.$bytes, "base64") : value);
(async () => {
    const client = new Function("library", "require", `return ${make}`)(require(library), require), results = [];
    for (const [path, ...words] of calls) {
        const names = path.split("."), method = names.pop();
        const owner = names.reduce((owner, name) => owner[name], client);
        try { results.push({ value: await owner[method](...words) }); }
        catch (error) {
            const { name, message, code, statusCode, status, details } = error;
            results.push({ error: { name, message, code, statusCode, status, details,
                body: error.response && error.response.body } });
        }
    }
    console.log(JSON.stringify(results));
})();
"""


def node(library: str, make: str, *calls: list[Any]) -> list[Any]:
    """What each call, `[method, *arguments]`, of the client returned or threw; `make` constructs it from `library`."""
    request = {"library": str(Path(require(library)).parent), "make": make, "calls": calls}
    command = [require("node"), "-e", _NODE]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def mime(customer: Customer, message_id: str) -> EmailMessage:
    return email.message_from_bytes(customer.sender.mime(message_id), policy=email.policy.default)


def later(**ahead: int) -> str:
    return (datetime.now(UTC) + timedelta(**ahead)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def manage_key(customer: Customer) -> str:
    answer = customer.manager.request("POST", "/v1/api-keys", json={"scope": "manage"})
    return str(answer.json()["key"])


def add_template(customer: Customer, alias: str, **template: str) -> None:
    assert customer.manager.request("PUT", f"/v1/templates/{alias}", json=template).status_code == 200
