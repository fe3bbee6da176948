"""A process that may not have much memory takes large messages a few at a time, and survives all of them."""

import base64
import json
import random
import smtplib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.raw import MESSAGE, Answer, Client, check_error, request
from tests.e2e.submission.client import endpoint
from tests.programs import needs
from tests.running_appliance import Provisioned, Running, add_account, appliance

MIB = 1024 * 1024
ADDRESS_SPACE = 360 * MIB
AT_ONCE = 30
CONTENT = base64.encodebytes(random.Random(1).randbytes(6_800_000)).decode()  # 9 MiB

pytestmark = needs("prlimit")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server within 360 MiB of address space."""
    program = ("prlimit", f"--as={ADDRESS_SPACE}", sys.executable, "-m", "appliance")
    with appliance(
        tmp_path_factory.mktemp("running"), fresh=True, program=program, smtp="allow_plaintext_auth = true"
    ) as started:
        yield started
        assert started.complaints() == []


@pytest.fixture(scope="module")
def accounts(running: Running) -> list[Provisioned]:
    others = [add_account(running.data_dir, name, domain=f"{name}.example") for name in ("second", "third")]
    return [running.account, *others]


def posted(running: Running, account: Provisioned, key: str, body: bytes) -> Answer:
    headers = (f"Authorization: Bearer {account.full_key}", f"Idempotency-Key: {key}", "Content-Type: application/json")
    with Client(running.url, timeout=120) as client:
        client.offer(request("POST", "/emails", *headers, body=body))
        return client.answer()


def submitted(running: Running, account: Provisioned) -> int:
    message = f"From: a@{account.domain}\r\nSubject: large\r\n\r\n{CONTENT}".replace("\r\n", "\n").replace("\n", "\r\n")
    with smtplib.SMTP(*endpoint(running), local_hostname="c.example.com", timeout=120) as client:
        client.login(account.username, account.password)
        try:
            client.sendmail(f"a@{account.domain}", ["b@example.net"], message)
        except smtplib.SMTPDataError as error:
            return error.smtp_code
    return 250


def large(account: Provisioned) -> bytes:
    """A message of 9 MiB over HTTP."""
    content = CONTENT.replace("\n", "")
    attachment = {"filename": "large.bin", "content": content}
    fields = {"from": f"a@{account.domain}", "to": "b@example.net", "subject": "s", "text": "t"}
    return json.dumps({**fields, "attachments": [attachment]}).encode()


@pytest.mark.parametrize("submitting", [0, 12], ids=["over HTTP", "over HTTP and SMTP"])
def test_thirty_large_messages_at_once(running: Running, accounts: list[Provisioned], submitting: int) -> None:
    """Each is accepted or told to come back, none fails, and afterwards mail is taken as before."""
    bodies = [large(account) for account in accounts]

    def post(number: int) -> Answer:
        which = number % len(accounts)
        return posted(running, accounts[which], f"large {submitting} {number}", bodies[which])

    def submit(number: int) -> int:
        return submitted(running, accounts[number % len(accounts)])

    with ThreadPoolExecutor(AT_ONCE + submitting) as pool:
        replies = pool.map(submit, range(submitting))
        answers = list(pool.map(post, range(AT_ONCE)))
        codes = list(replies)
    statuses = [answer.status for answer in answers]
    assert set(statuses) <= {202, 503}
    assert 202 in statuses  # how many depends on how fast the machine is
    for answer in answers:
        if answer.status == 503:
            check_error(answer)
            assert int(answer.headers["retry-after"]) >= 1
    assert set(codes) <= {250, 451}
    assert running.is_alive()
    small = MESSAGE.replace(b"a@example.com", f"a@{accounts[1].domain}".encode())
    assert posted(running, accounts[1], f"small {submitting}", small).status == 202
    assert posted(running, accounts[1], f"large again {submitting}", bodies[1]).status == 202
