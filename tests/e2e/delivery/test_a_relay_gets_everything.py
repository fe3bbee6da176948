"""Mode `relay`: all mail goes to the smarthost, logged in and under verified TLS, or it waits."""

import base64
from pathlib import Path

import pytest
import trio
import trustme

from tests.e2e.delivery import world as world_module
from tests.e2e.delivery.telling import explained, explanation, polled_recipient
from tests.e2e.delivery.test_tls_is_used_and_recorded import context, trusted
from tests.e2e.delivery.world import CONFIG, CREDITS, World, delays, said, world
from tests.fakes.mx import FakeMx
from tests.ports import free_port

USER, SECRET = "acme", "pass wörd, 12345"
LOGINS = {USER: SECRET}


def main_relay(port: int) -> str:
    """The settings of the smarthost for everything, for `relay_mode`."""
    return "\n".join(
        (
            'relay_host = "smarthost.test"',
            f"relay_port = {port}",
            f'relay_username = "{USER}"',
            f'relay_password = "{SECRET}"',
        )
    )


def domain_relay(domain: str, host: str, port: int, user: str = USER, secret: str = SECRET, tls: str = "") -> str:
    login = f'username = "{user}"\npassword = "{secret}"\n' if user else ""
    return f'[delivery.relays."{domain}"]\nhost = "{host}"\nport = {port}\n{login}tls = "{tls or "required"}"'


@pytest.fixture
def relay_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = CONFIG.replace('mode = "{mode}"', 'mode = "relay"')
    assert changed != CONFIG
    monkeypatch.setattr(world_module, "CONFIG", changed)


async def listen(made: World, name: str, port: int, server: FakeMx) -> None:
    address = await made.host(name, None)
    listeners = await trio.open_tcp_listeners(port, host=address)
    made.nursery.start_soon(trio.serve_listeners, server.serve, listeners)


def users(server: FakeMx) -> list[str]:
    secrets = [command.split()[2] for command in server.commands if command.startswith("AUTH PLAIN ")]
    return [base64.b64decode(secret).decode().split("\0")[1] for secret in secrets]


def recipients(server: FakeMx) -> list[str]:
    return sorted(address for got in server.messages for address in got.recipients)


def begins(server: FakeMx, *verbs: str) -> bool:
    return any(command.startswith(verbs) for command in server.commands)


async def login_only(stream: trio.abc.Stream) -> None:
    offered = b"AUTH LOGIN" if isinstance(stream, trio.SSLStream) else b"STARTTLS"
    await stream.send_all(b"250-relay.example\r\n250-8BITMIME\r\n250 " + offered + b"\r\n")


@pytest.mark.usefixtures("relay_mode")
async def test_a_relay_gets_everything(tmp_path: Path) -> None:
    """Mail for any domain, though its MX would answer: logged in, verified, and the password stands nowhere."""
    (authority, trust), port = trusted(tmp_path), free_port()
    other = domain_relay("login.test", "other.test", port)
    async with world(tmp_path, delays("1h"), trust, main_relay(port), other) as made:
        plain = FakeMx(tls=context(authority, "smarthost.test"), logins=LOGINS)
        login = FakeMx(tls=context(authority, "other.test"), logins=LOGINS, answers={"EHLO": login_only})
        passed_over = FakeMx()
        await listen(made, "smarthost.test", port, plain)
        await listen(made, "other.test", port, login)
        await made.domain("direct.test", passed_over)
        sent = [await made.send("ada@direct.test", "ada@login.test"), await made.send("ada@unheard-of.test")]
        await made.final(*sent)
        assert [made.status(message) for message in sent] == ["delivered"] * 2
        assert (recipients(plain), recipients(login)) == (
            ["ada@direct.test", "ada@unheard-of.test"],
            ["ada@login.test"],
        )
        assert set(users(plain)) == {USER}
        assert begins(login, "AUTH LOGIN")
        assert passed_over.sessions == 0
        assert made.dns.count("direct.test", "MX") == 0
        for attempt in made.attempts(sent[0]):
            assert attempt.host in ("smarthost.test", "other.test")
            assert (attempt.tls or "").startswith("TLSv1.3")
            assert (attempt.tls or "").endswith(", verified by PKIX")
        told = await explained(made, sent[0], "--dialogue")
        assert " over TLSv1.3, " in told
        told += await made.logged(", verified by PKIX")
        for secret in (SECRET, f"\0{USER}\0{SECRET}"):
            assert secret not in told
            assert base64.b64encode(secret.encode()).decode() not in told
        assert "AUTH PLAIN" in told
        assert "AUTH LOGIN" in told
        assert made.credits() == CREDITS - 3
        assert made.complaints() == []


@pytest.mark.slow
@pytest.mark.usefixtures("relay_mode")
async def test_a_relay_that_cannot_be_used_gets_nothing(tmp_path: Path) -> None:
    """A wrong password, no STARTTLS, a stranger's certificate, no relay at all: deferred, and `explain` says why."""
    (authority, trust), port = trusted(tmp_path), free_port()
    relays = {
        "wrong": FakeMx(tls=context(authority, "wrong.test"), logins=LOGINS),
        "plain": FakeMx(logins=LOGINS),
        "timid": FakeMx(logins=LOGINS),
        "stranger": FakeMx(tls=context(trustme.CA(), "stranger.test"), logins=LOGINS),
    }
    reasons = {
        "wrong": "because wrong.test said 535 5.7.8 no",
        "plain": "the server does not offer STARTTLS",
        "timid": "credentials are not sent without TLS",
        "stranger": "certificate",
        "missing": "no relay is configured for for-missing.test",
    }
    tables = (
        domain_relay("for-wrong.test", "wrong.test", port, secret="a guess"),
        domain_relay("for-plain.test", "plain.test", port),
        domain_relay("for-timid.test", "timid.test", port, tls="opportunistic"),
        domain_relay("for-stranger.test", "stranger.test", port),
    )
    async with world(tmp_path, delays("1h"), trust, *tables) as made:
        for name, server in relays.items():
            await listen(made, f"{name}.test", port, server)
        passed_over = FakeMx()
        await made.domain("for-missing.test", passed_over)
        sent = {name: await made.send(f"ada@for-{name}.test") for name in reasons}
        await made.tried(*sent.values())
        for name, message in sent.items():
            told = await polled_recipient(made, message)
            assert (told["status"], told["attempt_count"]) == ("deferred", 1), name
            assert told["last_smtp_code"] == (535 if name == "wrong" else None), name
            assert reasons[name] in await explanation(made, message), name
            assert made.events(message) == [], name
        assert said(made.attempts(sent["wrong"])) == [(535, "deferred")]
        assert users(relays["wrong"]) == [USER]
        assert not begins(relays["wrong"], "MAIL")
        for name in ("plain", "timid", "stranger"):
            assert relays[name].sessions == 1, name
            assert not begins(relays[name], "AUTH", "MAIL"), name
        assert passed_over.sessions == 0
        assert made.rows("SELECT * FROM suppressions") == []
        await made.tried(await made.send("bob@for-wrong.test"))
        (refused,) = [line for line in made.complaints() if "login" in line["event"]]  # once, not for each message
        assert (refused["level"], refused["relay"], refused["smtp_code"]) == ("error", "wrong.test", 535)
