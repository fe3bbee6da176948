"""SMTP login with an API key as the password: any username, the rules of the key, and the throttle of all logins."""

import smtplib
from collections.abc import Iterator

import pytest
import trio

from appliance.model.accounts import Scope
from appliance.model.mail import Message, Source
from tests import engines
from tests.e2e.submission.client import MESSAGE, smtp
from tests.e2e.submission.test_a_client_submits import queued
from tests.running_appliance import Running, appliance

USERNAMES = ("apikey", "resend", "shop@example.com")
METADATA = b"X-Service-Metadata: order=10045\r\nX-PM-Tag: welcome\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: engines.Kind) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("submission")) as started:
        yield started


def log_in(running: Running, key: str, mechanism: str = "PLAIN", username: str = "apikey") -> smtplib.SMTP:
    client = smtp(running, login=False)
    client.ehlo()
    client.user, client.password = username, key
    try:
        client.auth(mechanism, getattr(client, f"auth_{mechanism.lower()}"))
    except smtplib.SMTPException:
        client.close()
        raise
    return client


def send(client: smtplib.SMTP, message: bytes = MESSAGE) -> str:
    client.mail("shop@example.com")
    client.rcpt("ada@example.net")
    return queued(client.data(message))


def read(running: Running, message_id: str) -> Message:
    async def look() -> Message:
        async with engines.beside(running.data_dir) as store:
            message = await store.messages.read(running.account.account_id, message_id)
            assert message is not None
            return message

    return trio.run(look)


def new_key(running: Running, scope: Scope = Scope.SEND, *, domain: str | None = None, expires: int = 0) -> str:
    async def make() -> str:
        async with engines.beside(running.data_dir) as store:
            expires_at = store.access.env.now() + expires if expires else None
            _, key = await store.access.create_key(
                running.account.account_id, scope=scope, test=False, domain=domain, expires_at=expires_at
            )
            return key

    return trio.run(make)


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
def test_any_username_goes_with_a_key(running: Running, mechanism: str) -> None:
    for username in USERNAMES:
        with log_in(running, running.account.send_key, mechanism, username) as client:
            message = read(running, send(client, METADATA + MESSAGE))
        assert (message.source, message.credits_reserved) == (Source.SMTP, 1)
        assert message.metadata == {"order": "10045"}


def test_a_test_key_sends_test_mail(running: Running) -> None:
    with log_in(running, running.account.test_key) as client:
        message = read(running, send(client))
    assert (message.source, message.credits_reserved) == (Source.TEST, 0)


def test_the_limits_of_a_key_hold(running: Running) -> None:
    with log_in(running, new_key(running, domain="other.example")) as client:
        client.mail("shop@example.com")
        client.rcpt("ada@example.net")
        code, text = client.data(MESSAGE)
        assert (code, b"may only send from other.example" in text) == (550, True)
    with pytest.raises(smtplib.SMTPAuthenticationError, match="may only read"):
        log_in(running, new_key(running, Scope.READ))


def test_a_key_ends_during_a_session(running: Running) -> None:
    """When it expires and when it is revoked; a new login is refused as well."""
    expiring, revoked = new_key(running, expires=4_000_000), new_key(running)

    async def revoke() -> None:
        async with engines.beside(running.data_dir) as store:
            await store.access.revoke_key(revoked)

    with log_in(running, expiring) as first, log_in(running, revoked) as second:
        send(second)
        trio.run(revoke)
        trio.run(trio.sleep, 5)
        for client, words in ((first, b"expired at"), (second, b"")):
            code, text = client.mail("shop@example.com")
            assert (code, words in text) == (535, True), text
    for key in (expiring, revoked):
        with pytest.raises(smtplib.SMTPAuthenticationError):
            log_in(running, key)


def test_guesses_count_as_those_of_passwords(running: Running) -> None:
    with pytest.raises(smtplib.SMTPAuthenticationError, match=r"5\.7\.8"):
        log_in(running, "ma_live_" + "x" * 43)
