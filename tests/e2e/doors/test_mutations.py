"""Mutated requests to a server: never a 500, and an accepted message is stored with everything that was sent."""

import base64
import email
import email.policy
import json
import random
import time
from collections import defaultdict
from typing import Any

import pytest

from tests import engines
from tests.e2e.doors.libraries import add_template, later
from tests.e2e.webhooks.customer import Customer
from tests.web.doors.test_mutations import SAMPLES, marked, markers, mutated

REQUESTS = 60  # of each door
DUE = ("2026-11-15T13:00:00+01:00", "1795000000", "1796000000")


def headers(door: str, key: str) -> dict[str, str]:
    kind = "application/x-www-form-urlencoded" if door == "mailgun" else "application/json"
    scheme = "Basic " + base64.b64encode(f"api:{key}".encode()).decode() if door == "mailgun" else f"Bearer {key}"
    own = {"X-Postmark-Server-Token": key} if door == "postmark" else {"Authorization": scheme}
    return {"Content-Type": kind} | own


def current(body: Any) -> Any:
    """The body with times that lie ahead, and a stream that needs no https."""
    text = json.dumps(body).replace("broadcast", "transactional").replace(DUE[0], later(days=3))
    return json.loads(text.replace(DUE[1], str(int(time.time()) + 3600)).replace(DUE[2], str(int(time.time()) + 7200)))


def texts_of(mime: bytes) -> str:
    parts = list(email.message_from_bytes(mime, policy=email.policy.default).walk())
    contents = [(part.get_payload(decode=True) or b"").decode("latin-1") for part in parts]  # type: ignore[union-attr]
    return "\n".join([*(str(part.items()) for part in parts), *contents])


def stored_texts(customer: Customer) -> dict[str, str]:
    """All texts of the messages of each request."""
    data_dir, account_id = customer.sender.running.data_dir, customer.sender.account.account_id
    query = f"SELECT request_id, id, sender, tags, metadata FROM messages WHERE account_id = '{account_id}'"
    rows = engines.rows(data_dir, query)
    query = f"SELECT message_id, address FROM recipients WHERE account_id = '{account_id}'"
    texts: defaultdict[str, str] = defaultdict(str)
    for message_id, address in engines.rows(data_dir, query):
        texts[message_id] += f" {address}"

    async def mimes(store: Any) -> list[bytes]:
        return [await store.messages.mime(message_id) for _, message_id, *_ in rows]

    for (request_id, message_id, *values), mime in zip(rows, customer.sender.stored(mimes), strict=True):
        texts[request_id] += f"{texts[message_id]} {values} {texts_of(mime)}"
    return texts


@pytest.mark.parametrize("door", ["resend", "postmark", "mailgun", "sendgrid"])
def test_what_is_accepted_is_stored(customer: Customer, door: str) -> None:
    add_template(customer, "welcome", subject="Hello", text="Hi {{name}}")
    samples, chance = [name for name in SAMPLES if name.partition(" ")[0] == door], random.Random(door)
    expected: dict[str, set[str]] = {}
    for number in range(REQUESTS):
        sample = SAMPLES[samples[number % len(samples)]]
        body, is_valid = marked(current(sample.body), chance, number), chance.random() < 0.6
        if not is_valid:
            body, _ = mutated(body, chance)
        answer = customer.sender.client.post(
            f"/{door}{sample.path}",
            content=sample.encode(body),
            headers=headers(door, customer.sender.account.full_key),
        )
        assert answer.status_code < 500, (body, answer.text)
        if is_valid and answer.status_code < 300:
            expected[answer.headers["X-Request-Id"]] = markers(body)
    assert len(expected) >= REQUESTS / 3, f"only {len(expected)} of {REQUESTS} were accepted whole"
    texts = stored_texts(customer)
    lost = [(request_id, wanted) for request_id, wanted in expected.items() if wanted - markers(texts[request_id])]
    assert not lost, lost
