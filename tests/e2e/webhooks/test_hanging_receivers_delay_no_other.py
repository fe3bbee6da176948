"""Receivers that accept a connection and then do nothing, more of them than there are slots for posts."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from appliance.environment import Environment
from appliance.keys.keyfile import load_or_create
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.model.webhooks import EventType, WebhookOptions
from tests import engines
from tests.e2e.contract.service import Caller, message, new_key
from tests.e2e.webhooks.conftest import NewCustomer
from tests.e2e.webhooks.customer import Customer
from tests.running_appliance import Provisioned, Running, provision

HANGING = 500  # receivers; there are 200 slots
SILENT = "127.0.0.9"  # where the kernel accepts connections and no program does


@contextmanager
def no_answers(port: int, backlog: int) -> Iterator[None]:
    """A listener whose connections stay in its backlog."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((SILENT, port))
        listener.listen(backlog)
        yield


def hanging_accounts(data_dir: Path, url: str, count: int, name: str) -> list[Provisioned]:
    """So many accounts with a webhook at this URL."""

    async def make() -> list[Provisioned]:
        env, made = Environment(), []
        secrets = WebhookSecrets(load_or_create(data_dir), env)
        async with engines.beside(data_dir, env) as store:
            for number in range(count):
                account = await provision(store, f"{name}-{number}")
                webhook_id = env.identifier("whk")
                settings = WebhookOptions(url, tuple(EventType), enabled=True)
                await store.webhooks.save(account.account_id, settings, webhook_id, secrets.fresh(webhook_id)[1])
                made.append(account)
        return made

    return trio.run(make)


def send(caller: Caller, account: Provisioned) -> None:
    """Send one message for an account."""
    headers = {**account.bearer, "Idempotency-Key": new_key()}
    answer = caller.client.post("/emails", json=message(), headers=headers)
    assert answer.status_code == 202, answer.text


def forget(data_dir: Path, accounts: list[Provisioned]) -> None:
    """Delete their webhooks: what waits for them must not be in the way of other tests."""

    async def delete() -> None:
        async with engines.beside(data_dir) as store:
            for account in accounts:
                await store.webhooks.delete(account.account_id)

    trio.run(delete)


def latencies(good: Customer, count: int) -> list[float]:
    """How long each of so many events takes from the request to its receiver, one after the other; sorted."""
    taken, before = [], len(good.receiver.at(good.path))
    for number in range(1, count + 1):
        began = time.time()
        good.sender.send()
        taken.append(good.posts(before + number)[-1].at - began)
    return sorted(taken)


@pytest.mark.both_engines
def test_hanging_receivers(running: Running, new_customer: NewCustomer) -> None:
    """Neither their first attempts nor their next ones keep the events of a receiver that answers."""
    good = new_customer()
    good.saved()
    good.sender.delivered()
    good.posts(1)
    alone = latencies(good, 40)
    url = f"https://{SILENT}:{good.receiver.port}/"
    with no_answers(good.receiver.port, 2_000):
        accounts = hanging_accounts(running.data_dir, url, HANGING, "hanging")
        try:
            with ThreadPoolExecutor(10) as pool:
                list(pool.map(lambda account: send(good.sender, account), accounts))
            at_first = latencies(good, 40)
            time.sleep(6)  # by now all have hung once
            later = latencies(good, 40)
        finally:
            forget(running.data_dir, accounts)
    shown = [f"p50 {taken[20]:.3f} p99 {taken[-1]:.3f} s" for taken in (alone, at_first, later)]
    print(f"alone {shown[0]}; beside {HANGING} hanging for the first time {shown[1]}, afterwards {shown[2]}")
    assert at_first[-1] < 1.0
    assert later[-1] < 1.0
