"""Any node receives for all accounts; one node stores, and another takes over when it is lost."""

import smtplib
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import trio

from tests.e2e.feedback.feedback import LISTENS
from tests.e2e.nodes.cluster import Cluster, cluster

DOMAIN = "in.example.com"
HOOKS = '[webhooks]\nallow_networks = ["127.0.0.0/8"]'  # a section of the settings
ON_EACH = 40


async def test_every_accepted_message_is_stored_once_whichever_node_is_lost(tmp_path: Path, url: str) -> None:
    """The node that stores received mail is killed while both accept some."""
    async with cluster(tmp_path, url, ("a", "b"), more=f"{LISTENS}\n{HOOKS}") as made:
        made.dns.zone["hooks.example.net"] = {"A": ["127.0.0.1"]}  # where nothing answers
        assert (await made.ask("POST", "/v1/inbound/addresses", {"address": DOMAIN})).status_code == 201
        hook = {"url": "https://hooks.example.net/", "events": ["email.received"], "enabled": True}
        answer = await made.ask("PUT", "/v1/webhook", hook)
        assert answer.status_code == 200, answer.text
        accepted: list[str] = []
        async with trio.open_nursery() as sending:
            for node in made.nodes:
                sending.start_soon(trio.to_thread.run_sync, _send, made, node, accepted)
            await made.until(lambda: len(_stored(made)) >= ON_EACH // 4)
            storing, other = ("a", "b") if _stores(made, "a") else ("b", "a")
            assert not _stores(made, other)
            made.nodes[storing].kill()
        await made.until(lambda: len(_stored(made)) >= len(accepted), within=120)
        await made.until(lambda: not made.rows("SELECT 1 FROM feedback_mail"), within=120)
        stored = _stored(made)
        assert set(accepted) <= set(stored)
        assert len(set(stored)) == len(stored)  # one event for each, also for those whose 250 was lost
        assert made.rows("SELECT count(*) FROM received_messages") == [(len(stored),)]
        assert {subject[0] for subject in accepted} == {"a", "b"}
        assert _stores(made, other)


def _send(made: Cluster, node: str, accepted: list[str]) -> None:
    parts = urlsplit(made.nodes[node].inbound[0])
    server = parts.hostname or "", parts.port or 0
    with suppress(OSError, smtplib.SMTPException), smtplib.SMTP(*server, local_hostname="mx.example.net") as client:
        for number in range(ON_EACH):  # until the node is killed
            subject = f"{node}{number}"
            text = f"From: Ada <ada@example.net>\r\nSubject: {subject}\r\n\r\nHi\r\n"
            client.sendmail("ada@example.net", [f"support@{DOMAIN}"], text)
            accepted.append(subject)


def _stored(made: Cluster) -> list[str]:
    """The subjects of the stored messages, by their events."""
    rows = made.rows(
        "SELECT r.subject FROM received_messages r JOIN webhook_deliveries d ON d.message_id = r.id"
        " WHERE d.type = 'email.received'"
    )
    return [str(subject) for (subject,) in rows]


def _stores(made: Cluster, node: str) -> bool:
    return b"received mail stored" in made.nodes[node].log_file.read_bytes()
