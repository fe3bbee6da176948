"""Receivers that are slow, endless, or not there: the history says what is wrong, and other accounts notice nothing."""

import os
import time
from pathlib import Path

from tests.e2e.contract.service import eventually
from tests.e2e.webhooks.conftest import NewCustomer
from tests.e2e.webhooks.customer import Customer
from tests.fakes.webhook_server import Answer, Post

MANY = 40  # recipients of the one whose receiver is slow
BOMB = 100 * 2**20  # bytes of an answer


def slowly(_: Post) -> Answer:
    """An answer that nearly comes too late."""
    time.sleep(4)
    return 200, b""


def too_late(_: Post) -> Answer:
    """An answer that comes after the time limit."""
    time.sleep(6)
    return 200, b""


def bomb(_: Post) -> Answer:
    """An answer too long to be read."""
    return 200, bytes(BOMB)


def tried(customer: Customer) -> dict[str, object]:
    """The customer's only delivery, once it has been tried."""
    (delivery,) = eventually(customer.deliveries, lambda found: bool(found) and found[0]["attempt"] > 0)
    return dict(delivery)


def test_a_slow_receiver_delays_no_other_account(new_customer: NewCustomer) -> None:
    """While one account's receiver takes four seconds for each of many events, another's events arrive at once."""
    slow, quick = new_customer(), new_customer()
    slow.receiver.answers[slow.path] = slowly
    slow.saved()
    quick.saved()
    slow.sender.delivered(to=[f"a{number}@example.net" for number in range(MANY)])
    slow.posts(1)
    for number in range(1, 11):
        began = time.time()
        quick.sender.send()
        assert quick.posts(number)[-1].at - began < 1
    assert len(slow.receiver.at(slow.path)) < MANY
    slow.request("DELETE")


def test_a_receiver_that_takes_too_long_is_cut_off(customer: Customer) -> None:
    """After five seconds the attempt has failed, for the reason that the history tells, and is tried again."""
    customer.receiver.answers[customer.path] = too_late
    customer.saved()
    customer.sender.delivered()
    delivery = tried(customer)
    assert delivery["status"] == "pending"
    assert delivery["response_status"] is delivery["response_body"] is None
    assert "5 s" in str(delivery["error"])
    assert 4_900 < int(str(delivery["duration_ms"])) < 5_900
    customer.request("DELETE")


def test_an_endless_answer_is_not_read(customer: Customer) -> None:
    """Of an answer of 100 MiB two KiB are kept, and the rest costs no memory."""
    customer.receiver.answers[customer.path] = bomb
    customer.saved()
    process = customer.sender.running.process
    assert process is not None
    before = resident(process.pid)
    customer.sender.delivered()
    delivery = tried(customer)
    assert delivery["response_status"] == 200
    assert len(str(delivery["response_body"])) == 2048
    assert resident(process.pid) - before < 20 * 2**20
    customer.request("DELETE")


def test_a_receiver_that_is_not_there_is_told_in_words(customer: Customer) -> None:
    """Without a listener the delivery fails in the end, and says why."""
    customer.saved(url=customer.url.replace("127.0.0.1", "127.0.0.3"))
    customer.sender.delivered()
    (delivery,) = customer.settled(1)
    assert (delivery["status"], delivery["attempt"], delivery["response_status"]) == ("failed", 7, None)
    assert "refused" in delivery["error"]
    assert warnings(customer) == ["webhook_failing"]
    assert customer.save().status_code == 200
    customer.sender.delivered()
    customer.posts(1)
    eventually(lambda: warnings(customer), lambda codes: codes == [])


def warnings(customer: Customer) -> list[str]:
    """What the account's owner is warned of."""
    return [each["code"] for each in customer.manager.get("/v1/account").json()["warnings"]]


def resident(pid: int) -> int:
    """The bytes of memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
