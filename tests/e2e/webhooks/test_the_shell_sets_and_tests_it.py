"""`appliance webhook set` and `test --wait` beside a running server: the event arrives signed, its answer is told."""

import pytest

from tests.e2e.webhooks.customer import Customer
from tests.e2e.webhooks.test_deliveries import check_signature
from tests.running_appliance import command, ran

pytestmark = pytest.mark.both_engines


def test_an_event_of_the_shell_arrives(customer: Customer) -> None:
    running, name = customer.sender.running, customer.sender.account.name
    secret = command(running.config_file, "webhook", "set", name, customer.url)["secret"]
    answer = command(running.config_file, "webhook", "ping", name, "--wait")
    assert (answer["server_running"], answer["response_status"], answer["error"]) == (True, 200, None)
    (post,) = customer.posts(1)
    assert post.json()["type"] == "webhook.test"
    check_signature(post, secret)


def test_a_receiver_that_refuses_is_told(customer: Customer) -> None:
    running, name = customer.sender.running, customer.sender.account.name
    customer.receiver.answers[customer.path] = lambda _: (500, b"broken")
    command(running.config_file, "webhook", "set", name, customer.url)
    code, output, _ = ran(running.config_file, "webhook", "ping", name, "--wait")
    assert (code, " returned 500 after " in output) == (1, True)
