"""`appliance webhook set` and `test --wait` beside a running server: the event arrives signed, its answer is told."""

import os
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.e2e.webhooks.customer import Customer
from tests.e2e.webhooks.test_deliveries import check_signature
from tests.fork_client import fork
from tests.running_appliance import command

pytestmark = pytest.mark.both_engines


def test_an_event_of_the_shell_arrives(customer: Customer) -> None:
    """Posted with the secret that `set` has shown."""
    running, name = customer.sender.running, customer.sender.account.name
    secret = command(running.config_file, "webhook", "set", name, customer.url)["secret"]
    answer = command(running.config_file, "webhook", "ping", name, "--wait")
    assert (answer["server_running"], answer["response_status"], answer["error"]) == (True, 200, None)
    (post,) = customer.posts(1)
    assert post.json()["type"] == "webhook.test"
    check_signature(post, secret)


def test_a_receiver_that_refuses_is_told(customer: Customer) -> None:
    """With its answer, for people, and exit code 1."""
    running, name = customer.sender.running, customer.sender.account.name
    customer.receiver.answers[customer.path] = lambda _: (500, b"broken")
    command(running.config_file, "webhook", "set", name, customer.url)
    words = ("webhook", "ping", name, "--wait", "--config", str(running.config_file))
    with TemporaryFile() as stdout, TemporaryFile() as stderr:
        ran = fork(*words, directory=Path.cwd(), environment=os.environ, stdout=stdout, stderr=stderr)
        assert ran.wait(60) == 1
        stdout.seek(0)
        assert b" returned 500 after " in stdout.read()
