"""A restored server posts none of its old events before `resume`; the log then follows each message to its webhook."""

import json
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.contract.service import eventually, new_key
from tests.fakes.webhook_server import hooks
from tests.running_appliance import appliance, command
from tests.telemetry.exposition import read

pytestmark = pytest.mark.sqlite_only

METRICS = '\n[metrics]\nbind = ["127.0.0.1:0"]\n'


def test_a_restored_server_tells_no_old_news(tmp_path: Path) -> None:
    """What waited when the backup was made, and a ping made since, are posted after `resume`, once each."""
    message = {"from": "a@example.com", "to": "a@example.net", "subject": "s", "text": "t"}
    settings = 'retry_delays = ["6s", "1h"]\n'
    with (
        hooks(tmp_path) as receiver,
        appliance(tmp_path, server=METRICS, webhooks=receiver.settings(tmp_path) + settings) as running,
    ):
        receiver.answers["/"] = lambda _: (500, b"")
        with running.client(headers=running.login()) as client:
            client.put("/v1/webhook", json={"url": receiver.url("/")}).raise_for_status()
            sent = client.post("/emails", json=message, headers={"Idempotency-Key": new_key()}).json()
        eventually(lambda: len(receiver.posts), lambda count: count >= 1)
        file = str(tmp_path / "backup.tar")
        command(running.config_file, "backup", file)
        assert running.terminate() == 0
        command(running.config_file, "restore", file, "--force")
        receiver.answers["/"] = lambda _: (200, b"")
        before = len(receiver.posts)
        began = running.log_file.stat().st_size
        running.start()
        with running.client(headers=running.login()) as client:
            assert client.post("/v1/webhook/ping").status_code == 202
            time.sleep(2.5)
            assert len(receiver.posts) == before
            command(running.config_file, "resume")
            posts = eventually(lambda: receiver.posts[before:], lambda found: len(found) >= 2)
        assert {post.json()["type"] for post in posts} == {"email.delivered", "webhook.test"}

        lines = [json.loads(line) for line in running.log_lines(began)]
        (ready,) = (line for line in lines if line["event"] == "ready")

        def told() -> list[dict[str, object]]:
            log = [json.loads(line) for line in running.log_lines(began)]
            return [line for line in log if line.get("message_id") == sent["id"]]

        (line,) = eventually(told, lambda found: len(found) >= 1)
        assert (line["event"], line["status"], line["response_status"]) == ("webhook", "success", 200)
        page = read(httpx.get(f"http://{ready['metrics'][0]}/metrics", trust_env=False).text)
        posted = "appliance_webhook_posts_total"
        assert page[posted].samples[posted, (("result", "success"),)] == 2
        assert page["appliance_webhook_post_seconds"].samples["appliance_webhook_post_seconds_count", ()] == 2
        assert running.terminate() == 0
        assert len(receiver.posts) == before + 2
