"""The SMTP credential: who it stands for, and how soon a change is seen."""

from dataclasses import replace
from pathlib import Path

from appliance.environment import Environment
from appliance.intake.login_throttle import LoginThrottle
from appliance.intake.services import CACHED_FOR, Credentials
from appliance.store import open_store
from appliance.store.access import sha256
from tests.running_appliance import provision

START = 1_800_000_000_000_000  # microseconds


async def test_a_change_is_seen_within_half_a_second(tmp_path: Path) -> None:
    """A session that asks for every message is told what was true a moment ago, and no longer; wrong ones at once."""
    now = [START]
    env = replace(Environment(), now=lambda: now[0])
    async with open_store(tmp_path, env, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, env, LoginThrottle(env))
        right, wrong = sha256(account.password), sha256("wrong")
        assert credentials.known_caller(account.username, right) is None
        found = await credentials.caller(account.username, right)
        assert found is not None
        assert found.account_id == account.account_id
        for username, password in ((account.username, wrong), ("unknown", right), ("no\0body", right)):
            assert await credentials.caller(username, password) is None
            assert credentials.known_caller(username, password) is None
        await store.access.revoke_credential(account.account_id, account.username)
        assert await credentials.caller(account.username, right) is None
        assert credentials.known_caller(account.username, right) is found
        now[0] += CACHED_FOR
        assert credentials.known_caller(account.username, right) is None


async def test_what_this_process_changes_is_seen_at_once(tmp_path: Path) -> None:
    """After `forget` nothing is known, so the store is read again."""
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, env, LoginThrottle(env))
        assert await credentials.caller(account.username, sha256(account.password)) is not None
        credentials.forget()
        assert credentials.known_caller(account.username, sha256(account.password)) is None


async def test_a_use_is_noted_and_written_later(tmp_path: Path) -> None:
    """The last use of a credential is on disk once uses are recorded; a wrong password is no use."""
    now = [START]
    env = replace(Environment(), now=lambda: now[0])
    async with open_store(tmp_path, env, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, env, LoginThrottle(env))

        async def last_used() -> int | None:
            (credential,) = await store.access.credentials(account.account_id)
            return credential.last_used_at

        await credentials.look_up(account.username, sha256("wrong"))
        await credentials.record_uses()
        assert await last_used() is None
        now[0] += 1_000_000
        await credentials.look_up(account.username, sha256(account.password))
        assert await last_used() is None
        await credentials.record_uses()
        assert await last_used() == START + 1_000_000
