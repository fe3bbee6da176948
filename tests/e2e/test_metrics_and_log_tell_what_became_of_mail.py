"""A running server tells Prometheus what it did, and its log follows one message by its id."""

import json
import time
from pathlib import Path
from typing import Any

import httpx

from tests.running_appliance import Running, appliance
from tests.telemetry.exposition import read

METRICS = '\n[metrics]\nbind = ["127.0.0.1:0"]\n'


def log(running: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.log_lines() if line.startswith(b"{")]


def sample(text: str, name: str, **labels: str) -> float:
    return read(text)[name].samples[name, tuple(labels.items())]


def send(running: Running, *to: str, **fields: Any) -> httpx.Response:
    body = {"from": "a@example.com", "to": list(to), "subject": "s", "text": "t", **fields}
    with running.client() as client:
        return client.post("/emails", json=body, headers={"Idempotency-Key": f"{to}{fields}"})


def followed(running: Running, message_id: str, wanted: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 60
    while True:
        found = [line for line in log(running) if line.get("message_id") == message_id]
        if len(found) >= wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def test_metrics_and_log_tell_what_became_of_mail(tmp_path: Path) -> None:
    """Accepted, refused, delivered, bounced, deferred: counted, measured, and each on a line with the message's id."""
    with appliance(tmp_path, server=METRICS) as running:
        answer = send(running, "ok@example.net", "bounce@example.net", "defer@example.net").json()
        assert send(running, "ok@example.net", subject="\x00").status_code == 400
        lines = followed(running, answer["id"], 5)
        (ready,) = (line for line in log(running) if line["event"] == "ready")
        page = httpx.get(f"http://{ready['metrics'][0]}/metrics", trust_env=False).text
        assert running.terminate() == 0
    first, *rest = lines
    assert (first["event"], first["request_id"], first["recipients"]) == ("accepted", answer["request_id"], 3)
    assert sorted(line["event"] for line in rest) == ["bounced", "deferred", "delivered", "delivered"]
    assert {line["domain"] for line in rest} == {"example.net"}
    classes = [(line["smtp_code"], line["bounce_class"]) for line in rest if line["event"] == "bounced"]
    assert classes == [(550, "invalid_recipient")]
    assert "@example.net" not in json.dumps([first, *({**line, "reply": ""} for line in rest)])

    assert sample(page, "appliance_messages_accepted_total", source="api") == 1
    assert sample(page, "appliance_recipients_accepted_total", source="api") == 3
    assert sample(page, "appliance_refusals_total", way="http", code="invalid_request") == 1
    assert sample(page, "appliance_deliveries_total", pool="sandbox", result="delivered", reply="2xx") == 2
    assert sample(page, "appliance_deliveries_total", pool="sandbox", result="deferred", reply="4xx") == 1
    bounces = read(page)["appliance_bounces_total"].samples
    (labels,) = (dict(labels) for _, labels in bounces)
    assert labels == {"result": "bounced", "class": "invalid_recipient"}
    assert sample(page, "appliance_queue_recipients", state="due") == 0
    families = read(page)
    assert families["appliance_accept_seconds"].samples["appliance_accept_seconds_count", ()] == 1
    assert families["appliance_delivery_seconds"].samples["appliance_delivery_seconds_count", ()] == 2
    assert families["appliance_store_commit_seconds"].samples["appliance_store_commit_seconds_count", ()] >= 3
